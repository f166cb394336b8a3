"""Every block of code in README, quick start and how-to pages runs as it stands there."""

from __future__ import annotations

import copy
import importlib
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import abnn
from abnn.cli import app
from abnn.cli.serve import listen
from abnn.networks.by_name import build_backbone
from website.blocks import Block, blocks, commands

ROOT = Path(__file__).parents[2]
HOW_TO = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if page.name != "index.md")
QUICK_START = {block.title: block.code for block in blocks(ROOT / "docs" / "quickstart.md") if block.title}
ELSEWHERE = {"pip", "python", "uv", ".", "make"}
"""What the check of a release runs, in an environment of its own."""


SHORT = {
    "abnn.train.fit": {"EPOCHS": 1, "STEPS": 1},
    "abnn.train.combine": {"STEPS": 10, "MADE": 100},
    "abnn.triage.calibrate": {"LEAST_OUTLIERS": 96},
}
"""Short trainings and few outliers: what is tested is that the text works, not how well."""


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, values in SHORT.items():
            for name, value in values.items():
                patch.setattr(importlib.import_module(module), name, value)
        yield


@pytest.fixture(scope="module")
def scope(few_steps: None) -> dict[str, Any]:
    """What the pages speak of: a trained network, loaders, and a model that was fitted and calibrated."""
    digits = load_digits()
    x, y = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16, torch.tensor(digits.target)
    made: dict[str, Any] = {
        "abnn": abnn,
        "my_outliers": torch.rand(64, 1, 8, 8),
        "other_outliers": torch.rand(8, 1, 8, 8),
    }
    exec(QUICK_START["reader.py"], made)  # noqa: S102
    train = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=128, shuffle=True)
    held_out = DataLoader(TensorDataset(x[1300:], y[1300:]), batch_size=128)
    network = made["build"]()
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(10):
        for inputs, labels in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs), labels).backward()
            optimizer.step()
    network.eval()
    model = abnn.attach(network, example=x[:1])
    abnn.fit(model, train, epochs=1, progress=False)
    abnn.calibrate(model, held_out, progress=False)
    loaders = {"train_loader": train, "val_loader": held_out, "held_out_loader": held_out}
    return made | loaders | {"network": network, "backbone": network, "model": model, "x": x[1300:1316]}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any]) -> Path:
    """A folder with everything that the commands name; it is the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reader.py").write_text(QUICK_START["reader.py"])
    torch.save(scope["network"].state_dict(), "reader.pt")
    recipe = {"width": 8, "blocks": 1, "stem": "small"}
    model = abnn.attach(abnn.build_backbone("paper-resnet", 10, 1, **recipe).eval(), example=scope["x"][:1])
    abnn.fit(model, scope["held_out_loader"], epochs=0, progress=False)
    abnn.calibrate(model, scope["held_out_loader"], progress=False)
    for folder in ("my-model/model", "demo/model"):
        Path(folder).parent.mkdir()
        model.save(folder, backbone=True, extra={"class_names": [str(digit) for digit in range(10)]})
    pictures = (scope["x"].numpy() * 255).astype(np.uint8)[:, 0]
    np.savez("digits.npz", images=pictures)
    for file in ("photo.jpg", "my-photo.jpg", "my-digit.png", "incoming/1.png", "archive/old/1.png"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[0]).resize((64, 64)).save(file)
    return tmp_path


def run_line(line: str) -> None:
    """Run one line for the shell: abnn in this process, everything else in one of its own."""
    line, _, target = line.partition(" > ")
    main, _, otherwise = line.partition(" || ")
    given: bytes | None = None
    status = 0
    for step in main.split(" | "):
        name, *arguments = shlex.split(step)
        if name.endswith("abnn"):
            done = CliRunner().invoke(app, arguments, input=given)
            assert done.exit_code in (0, 10, 11), f"{step}: {done.output} {done.exception!r}"
            given, status = done.stdout_bytes, done.exit_code
        else:
            given = subprocess.run([name, *arguments], input=given, capture_output=True, check=True).stdout
    if status and otherwise:
        subprocess.run(shlex.split(otherwise), stdout=subprocess.DEVNULL, check=True)
    if target:
        Path(target).write_bytes(given or b"")


def run_commands(code: list[Block]) -> int:
    """Run every line that is not for an environment of its own; return how many there were."""
    lines = [line for block in code if block.language == "bash" for line in commands(block)]
    own = [line for line in lines if shlex.split(line)[0] not in ELSEWHERE]
    for line in own:
        run_line(line)
    return len(own)


def run_python(code: list[Block], scope: dict[str, Any], name: str) -> dict[str, Any]:
    """Run all blocks of Python in one scope, which starts as a copy of what the pages speak of."""
    own = {**scope, "model": copy.deepcopy(scope["model"])}
    for block in code:
        if block.language == "python" and not block.title:
            exec(compile(block.code, name, "exec"), own)  # noqa: S102
    return own


@pytest.mark.parametrize("page", HOW_TO, ids=lambda page: page.stem)
def test_how_to_pages(page: Path, scope: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(page)
    assert code and {block.language for block in code} <= {"python", "bash", "text"}
    if page.stem == "draws":  # about images that have views
        scope = {**scope, "network": nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(784, 3))}
        code = [*code[:1], Block("python", "", "import torch\nx = torch.rand(4, 1, 16, 16)"), *code[1:]]
    run_python(code, scope, page.name)


def with_commands(page: Path) -> bool:
    lines = [line for block in blocks(page) if block.language == "bash" for line in commands(block)]
    return page.stem != "fit" and any(shlex.split(line)[0] not in ELSEWHERE for line in lines)


@pytest.mark.parametrize("page", filter(with_commands, HOW_TO), ids=lambda page: page.stem)
def test_commands_of_how_to_pages(page: Path, place: Path) -> None:
    assert run_commands(blocks(page))


def test_commands_that_fit(place: Path, scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of small pictures, with a small network by the name of a large one."""

    def small(name: str, classes: int, channels: int) -> nn.Module:
        return build_backbone("paper-resnet", classes, channels, width=16, blocks=2)

    def short_page(evaluations: Any, path: Path, *rest: Any, **more: Any) -> Path:
        path.write_text("the page has tests of its own")
        return path

    monkeypatch.setattr("abnn.cli.steps.own_report.write_report", short_page)
    monkeypatch.setattr("abnn.cli.steps.own_backbone.build_backbone", small)
    save_file(small("resnet18", 10, 3).state_dict(), "my-weights.safetensors")
    pictures = [each for inputs, _ in scope["held_out_loader"] for each in inputs[:, 0].numpy()]
    labels = [each for _, labels in scope["held_out_loader"] for each in labels.tolist()]
    for number, (picture, label) in enumerate(zip(pictures[:100], labels[:100], strict=True)):
        folder = place / "photos" / str(label)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((picture * 255).astype(np.uint8)).resize((32, 32)).save(folder / f"{number}.png")
    assert run_commands(blocks(ROOT / "docs" / "how-to" / "fit.md")) == 3
    assert (place / "my-model" / "model").is_dir() and (place / "my-model" / "report.html").exists()


def test_the_readme(scope: dict[str, Any], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    monkeypatch.setattr("abnn.serve.server.run", lambda application, *rest: served.append(application))
    monkeypatch.setattr(sys.modules[listen.__module__], "listen", lambda host, port: listen(host, 0))
    code = blocks(ROOT / "README.md")
    assert [line.split("#")[0].strip() for line in code[0].code.splitlines()] == ["make demo", "make test"]
    assert run_commands(code) == 3 and len(served) == 1
    own = run_python(code, scope, "README.md")
    assert set(own["p"].verdict) <= set(abnn.triage.VERDICTS) and own["p"].parts


def test_the_quick_start(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its programs run one after the other, as a reader saves them, with short trainings."""
    shutil.rmtree("my-model")
    for title, code in QUICK_START.items():
        Path(title).write_text(code.replace("range(15)", "range(1)"))
        monkeypatch.delitem(sys.modules, title.removesuffix(".py"), raising=False)
    page = blocks(ROOT / "docs" / "quickstart.md")
    lines = [line for block in page if block.language == "bash" for line in commands(block)]
    programs = [line.split()[1] for line in lines if line.startswith("python ") and line.endswith(".py")]
    assert programs == ["train.py", "teach.py"]
    for program in programs:
        runpy.run_path(program, run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("digits: ") == printed.count("noise:  ") == 1
    assert run_commands(page) == 1
