"""``abnn doctor``: what is installed, which device is used, and what will be slow."""

import importlib.metadata
import os
import platform
import re
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from abnn._version import __version__
from abnn.cli._common import Quiet, say, usual_device

SLOW_SECONDS = 1.0  # a pass of 16 photographs through a small network takes a tenth of this on two cores of a laptop


def doctor(
    measure: Annotated[bool, typer.Option(help="Also time a small network.")] = True,
    quiet: Quiet = False,
) -> None:
    """Say what is installed, which device will be used, and what is slow. Exit status 1 where something does not work."""
    problems = list(_problems())
    if not quiet:
        for line in (*_describe(), *(_time() if measure else ())):
            say(line)
    for problem in problems:
        say(f"Problem: {problem}", warning=True)
    if problems:
        raise typer.Exit(1)
    say("No problem was found.")


def extras() -> dict[str, list[str]]:
    """Return the packages of each extra, as the installed abnn names them; those of developers are left out."""
    packages: dict[str, list[str]] = {}
    for text in importlib.metadata.requires("abnn") or []:
        package, extra = re.match(r"[\w.-]+", text), re.search(r"extra == ['\"]([\w-]+)['\"]", text)
        if package and extra and extra[1] not in ("dev", "docs"):
            packages.setdefault(extra[1], []).append(package[0])
    return packages


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _describe() -> Iterator[str]:
    import torch

    yield f"abnn {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    build = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU alone"
    yield f"torch {torch.__version__}, built for {build}"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield f"CPU: {cores} cores, torch computes with {torch.get_num_threads()} threads"
    for number in range(torch.cuda.device_count()):
        memory = torch.cuda.get_device_properties(number).total_memory / 2**30
        yield f"GPU: cuda:{number}, {torch.cuda.get_device_name(number)}, {memory:.0f} GiB"
    yield f"--device auto means: {usual_device()}"
    for extra, packages in extras().items():
        versions = {each: version_of(each) for each in packages}
        if all(versions.values()):
            yield f"{extra}: {', '.join(f'{name} {number}' for name, number in versions.items())}"
        else:
            missing = ", ".join(name for name, number in versions.items() if number is None)
            yield f"{extra}: not complete, lacks {missing}; pip install 'abnn[{extra}]'"


def _problems() -> Iterator[str]:
    import torch

    from abnn.networks.vision import torchvision

    if version_of("torchvision") is not None:
        try:
            torchvision()
        except Exception as error:  # noqa: BLE001 - a build for another torch fails in many ways
            yield (str(error).splitlines() or [type(error).__name__])[0]
    if torch.version.cuda and not torch.cuda.is_available():
        yield "torch is built for CUDA, but no GPU can be used: check the driver with nvidia-smi."
    if torch.get_num_threads() == 1 and (os.cpu_count() or 1) > 1:
        yield "torch computes with one thread only; unset OMP_NUM_THREADS."


def _time() -> Iterator[str]:
    """Time a pass of 16 photographs through a small network of convolutions."""
    import torch
    from torch import nn

    device = usual_device()
    layers: list[Any] = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(32, 32, 3, 1, 1), nn.ReLU()]
    network, x = nn.Sequential(*layers).to(device).eval(), torch.rand(16, 3, 112, 112, device=device)
    with torch.inference_mode():
        network(x)[0, 0, 0, 0].item()
        started = time.perf_counter()
        network(x)[0, 0, 0, 0].item()
        seconds = time.perf_counter() - started
    yield f"A small network on 16 photographs, on {device}: {1000 * seconds:.0f} ms"
    if device == "cpu":
        yield "Slow here: fitting (abnn fit, abnn.fit). Without a GPU, --epochs 0 learns the score alone, in seconds."
    if seconds > SLOW_SECONDS:
        yield "That is slow: something else may use this machine."
