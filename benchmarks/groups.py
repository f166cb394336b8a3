"""The groups of measurements that ``benchmarks/speed.py`` can run: what is compared with what."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import bars
import memory
import peers
import torch
import work
from setting import Run
from timing import Work, row
from torch import Tensor
from work import check, check_folding, exactly, without_noise

import abnn
from abnn.attached import Attached


def training(run: Run) -> dict[str, Any]:
    """One iteration with its data and outliers: the authors' work in every library, and what other methods do instead."""
    s, network = run.sizes, run.network()
    images, labels = work.made_up(s.pictures, s.pixels, s.classes)

    def ours(preset: str, precision: str = "32-true", compile: bool = False) -> Work:
        loader = work.tensor_loader(images, labels, s.batch)
        return work.OurTraining(copy.deepcopy(network), loader, run.device, preset, precision, compile)

    def peer(each: peers.Peer) -> Work:
        batches = work.authors_batches(images, labels, s.batch, s.workers)
        return peers.PeerTraining(peers.PeerNetwork(copy.deepcopy(network), each), batches, run.device)

    def others(networks: list[torch.nn.Module]) -> Work:
        batches = work.authors_batches(images, labels, s.batch, s.workers)
        return work.PlainTraining(networks, batches, run.device)

    makers: dict[str, Callable[[], Work]] = {bars.OURS: lambda: ours("authors")}
    makers[bars.OURS_BF16] = lambda: ours("authors", "bf16-mixed")
    if run.on_cuda or s.compiled:
        makers[bars.OURS_COMPILED] = lambda: ours("authors", "bf16-mixed", compile=True)
    makers[bars.OURS_DEFAULT] = lambda: ours("default")
    makers |= {name: lambda each=each: peer(each) for name, each in run.peers.items()}  # type: ignore[misc]
    makers[bars.DROPOUT] = lambda: others([work.DropoutNetwork(copy.deepcopy(network))])
    makers[f"{bars.ENSEMBLE} of {s.members}"] = lambda: others(work.copies(network, s.members))
    return {"rows": run.measure(makers)}


def prediction(run: Run) -> dict[str, Any]:
    """One batch: the mean softmax over the draws, and of the default preset prediction and score with its own settings."""
    s, network = run.sizes, run.network()
    x = run.images(s.batch)
    model = abnn.attach(network, x[:1], preset="authors", draws=1)
    others = {name: peers.PeerNetwork(copy.deepcopy(network), peer).to(run.device) for name, peer in run.peers.items()}

    def halved(compiled: bool = False) -> tuple[Attached, Tensor]:
        small, image = copy.deepcopy(network).to(torch.bfloat16), x.to(torch.bfloat16)
        if compiled and s.bf16_channels_last:
            small, image = work.channels_last(small, image)
        return abnn.attach(small, image[:1], preset="authors", draws=1), image

    ensemble, dropout = work.copies(network, s.members), work.DropoutNetwork(network)
    makers: dict[str, Callable[[], Work]] = {
        bars.OURS: lambda: lambda: model.predict(x, draws=s.draws).probs,
        bars.OURS_FRESH: lambda: lambda: model.predict(x, draws=s.draws, seed=None).probs,
        bars.OURS_DEFAULT: lambda: default_maker(work.default_model(network, x), x),
    }
    makers[bars.OURS_BF16] = lambda: predict_maker(*halved(), s.draws)
    models = {}
    if s.compiled:
        models[bars.OURS_COMPILED_32] = abnn.attach(network, x[:1], preset="authors", draws=1), x
        models[bars.OURS_COMPILED] = halved(compiled=True)
        makers |= compiled_makers(models, s.draws)
        makers[bars.OURS_DEFAULT_COMPILED] = lambda: default_maker(work.default_model(network, x), x, compiled=True)
    makers[bars.LOOP] = lambda: loop_maker(model, x, s.draws)
    makers |= {
        name: lambda other=other: lambda: peers.predict(other, x, s.draws)  # type: ignore[misc]
        for name, other in others.items()
    }
    makers[bars.DROPOUT] = lambda: lambda: peers.predict(dropout, x, s.draws)
    makers[f"{bars.ENSEMBLE} of {s.members}"] = lambda: lambda: work.members(ensemble, x)
    makers |= plain_makers(run, network, x)
    rows = run.measure(makers)
    checks = {}
    for name, (compiled, image) in models.items():
        checks[f"{name}, folded"] = check_folding(compiled, image, s.draws, rounding(run, image))
    with exactly():
        anew = abnn.attach(network, x[:1], preset="authors", draws=1)
        checks["folded against one by one"] = check_folding(anew, x, s.draws)
        for name, other in others.items():
            other.copy_means(anew)
            checks[f"{name} against {bars.OURS}, without noise"] = check(
                peers.predict(other, x, 1), without_noise(anew, x)
            )
    return {"rows": rows, "checks": checks}


def seeds(run: Run) -> dict[str, Any]:
    """One training iteration of several seeds: one after another, and on CUDA at once; compiled there, in bf16."""
    s, network = run.sizes, run.network()
    images, labels = work.made_up(s.pictures, s.pixels, s.classes)
    loader = work.tensor_loader(images, labels, s.batch)
    fastest: dict[str, Any] = {"precision": "bf16-mixed", "compile": True} if run.on_cuda else {}

    def one() -> work.OurTraining:
        return work.OurTraining(copy.deepcopy(network), loader, run.device, "authors", **fastest)

    def in_turn() -> Work:
        each = [one() for _ in range(s.seeds)]
        return lambda: [step() for step in each]

    makers: dict[str, Callable[[], Work]] = {bars.ONE_SEED: one, bars.IN_TURN: in_turn}
    if run.on_cuda:
        makers[bars.AT_ONCE] = lambda: work.AtOnce(one, s.seeds, run.device)
    return {"rows": run.measure(makers)}


def resnet50(run: Run) -> dict[str, Any]:
    """A large network: a prediction of the default preset costs hardly more than the plain network's, draws less than a loop."""
    s = run.sizes
    x = run.images(s.resnet_batch, 3, s.resnet_pixels)
    network = work.settle(abnn.build_backbone(s.resnet, 1000).to(run.device), x)
    if s.resnet_bf16:
        network, x = network.to(torch.bfloat16), x.to(torch.bfloat16)
    if s.resnet_channels_last:
        network, x = work.channels_last(network, x)
    model = work.default_model(network, x)
    models = {bars.OURS_DEFAULT: model}
    makers: dict[str, Callable[[], Work]] = {
        bars.OURS_DEFAULT: lambda: default_maker(model, x),
        bars.OURS_DEFAULT_DRAWS: lambda: predict_maker(model, x, s.draws),
        bars.LOOP: lambda: loop_maker(model, x, s.draws),
        **plain_makers(run, network, x),
    }
    if s.compiled:
        again = models[bars.OURS_DEFAULT_COMPILED] = work.default_model(network, x)
        makers[bars.OURS_DEFAULT_COMPILED] = lambda: default_maker(again, x, compiled=True)
    rows = run.measure(makers)
    most = rounding(run, x)
    checks = {f"{name}, folded": check_folding(each, x, s.draws, most) for name, each in models.items()}
    return {"rows": rows, "checks": checks}


def peak_memory(run: Run) -> dict[str, Any]:
    """Peak memory of a prediction with few and with many draws, each in a process of its own.

    The second row of each is without what the process holds before the network is built.
    """
    rows = {}
    for draws in run.sizes.memory_draws:
        measured = memory.measure_alone(replace(_point(run), draws=draws, batch=run.sizes.batch))
        rows[f"{draws} draws"] = row([measured["peak"]], "MiB")
        rows[f"{draws} draws, above the start"] = row([measured["peak"] - measured["before"]], "MiB")
    return {"rows": rows}


def curves(run: Run) -> dict[str, Any]:
    """Time and memory of a prediction along one size at a time."""
    s, start = run.sizes, _point(run)
    points = {
        "draws": [(value, replace(start, draws=value)) for value in s.curve_draws],
        "batch": [(value, replace(start, batch=value)) for value in s.curve_batches],
        "width": [(value, replace(start, width=value)) for value in s.curve_widths],
        "blocks": [(value, replace(start, blocks=value)) for value in s.curve_blocks],
        "attached blocks": [(value, replace(start, preset="default", draws=0, last=value)) for value in s.curve_last],
    }
    done: dict[memory.Point, dict[str, Any]] = {}
    for curve in points.values():
        for _, point in curve:
            if point not in done:
                done[point] = _curve_point(run, point)
    return {"curves": {name: [{"at": value, **done[each]} for value, each in curve] for name, curve in points.items()}}


def _curve_point(run: Run, point: memory.Point) -> dict[str, Any]:
    used = memory.measure(point) if run.on_cuda else memory.measure_alone(point)
    model, x = point.build()
    makers: dict[str, Callable[[], Work]] = {bars.OURS: lambda: lambda: model.predict(x, draws=point.draws).probs}
    if point.draws:
        makers[bars.LOOP] = lambda: loop_maker(model, x, point.draws)
    plain = plain_makers(run, model.backbone, x)
    makers |= {name: plain[name] for name in plain if name == (bars.PLAIN_GRAPH if run.on_cuda else bars.PLAIN)}
    rows = run.measure(makers, run.sizes.curve_plan)
    rows["memory"] = row([round(used["peak"] - used["before"], 2)], "MiB")
    return {"rows": rows}


def _point(run: Run) -> memory.Point:
    s = run.sizes
    threads = None if run.on_cuda else torch.get_num_threads()
    return memory.Point(
        run.device.type, s.draws, s.curve_batch, s.pixels, s.width, s.blocks, s.classes, threads=threads
    )


def predict_maker(model: Attached, x: Tensor, draws: int) -> Work:
    return lambda: model.predict(x, draws=draws).probs


def default_maker(model: Attached, x: Tensor, compiled: bool = False) -> Work:
    """Predictions and scores with default settings; compiled when first called, for the one size that they are called with."""
    if compiled:
        model.compile(dynamic=False)
    return lambda: model.predict(x).score


def compiled_makers(models: Mapping[str, tuple[Attached, Tensor]], draws: int) -> dict[str, Callable[[], Work]]:
    """Predictions of models that are compiled when they are first called, for the one size that they are called with."""

    def make(model: Attached, x: Tensor) -> Work:
        model.compile(dynamic=False)
        return predict_maker(model, x, draws)

    return {name: lambda each=each: make(*each) for name, each in models.items()}  # type: ignore[misc]


def rounding(run: Run, x: Tensor) -> float:
    """How far rounding may put predictions apart: bf16 keeps two to three digits, TF32 three."""
    return 0.1 if x.dtype == torch.bfloat16 else 2e-2 if run.on_cuda else 1e-4


def loop_maker(model: Attached, x: Tensor, draws: int) -> Work:
    """The mean softmax over a loop of passes of our own model."""
    loop = work.one_by_one(model, x, draws)
    return lambda: loop().mean(0)


def plain_makers(run: Run, network: torch.nn.Module, x: Tensor) -> dict[str, Callable[[], Work]]:
    """The network without attachments: as it is, compiled, and on CUDA both as one graph."""
    makers: dict[str, Callable[[], Work]] = {bars.PLAIN: lambda: lambda: work.plain(network, x)}
    if run.on_cuda:
        makers[bars.PLAIN_GRAPH] = lambda: work.captured(lambda image: work.plain(network, image), x)
    if run.sizes.compiled:
        compiled: Any = torch.compile(network, dynamic=False)
        if run.on_cuda:
            makers[bars.PLAIN_COMPILED_GRAPH] = lambda: work.captured(lambda image: work.plain(compiled, image), x)
        else:
            makers[bars.PLAIN_COMPILED] = lambda: lambda: work.plain(compiled, x)
    return makers


GROUPS: dict[str, Callable[[Run], dict[str, Any]]] = {
    "training": training,
    "prediction": prediction,
    "seeds": seeds,
    "resnet50": resnet50,
    "memory": peak_memory,
    "curves": curves,
}
