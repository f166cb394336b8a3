"""What the pages speak of, for tests that run their code: a network, loaders, a fitted model, and a folder with everything that commands name."""

from __future__ import annotations

import copy
import importlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import abnn
from abnn.cli import app
from website.blocks import Block, blocks, commands

ROOT = Path(__file__).parents[2]
QUICK_START = {block.title: block.code for block in blocks(ROOT / "docs" / "quickstart.md") if block.title}
ELSEWHERE = {"pip", "python", "uv", ".", "make"}
"""What the check of a release runs, in an environment of its own."""

SHORT = {
    "abnn.train.fit": {"EPOCHS": 1, "STEPS": 1},
    "abnn.train.combine.members": {"STEPS": 10},
    "abnn.train.combine.gather": {"OUTLIERS": 100},
    "abnn.triage.calibrate": {"LEAST_OUTLIERS": 96},
}
"""Short trainings and few outliers: what is tested is that the text works, not how well."""


@pytest.fixture(autouse=True, scope="package")
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module, values in SHORT.items():
            for name, value in values.items():
                patch.setattr(importlib.import_module(module), name, value)
        yield


@pytest.fixture(scope="package")
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


@pytest.fixture(scope="package")
def saved(scope: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model that the command line can load."""
    recipe = {"width": 8, "blocks": 1, "stem": "small"}
    model = abnn.attach(abnn.build_backbone("paper-resnet", 10, 1, **recipe).eval(), example=scope["x"][:1])
    abnn.fit(model, scope["held_out_loader"], epochs=0, progress=False)
    abnn.calibrate(model, scope["held_out_loader"], progress=False)
    names = [str(digit) for digit in range(10)]
    return model.save(tmp_path_factory.mktemp("saved") / "model", backbone=True, extra={"class_names": names})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: dict[str, Any], saved: Path) -> Path:
    """A folder with everything that the commands name; it is the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "reader.py").write_text(QUICK_START["reader.py"])
    torch.save(scope["network"].state_dict(), "reader.pt")
    for folder in ("my-model/model", "demo/model"):
        shutil.copytree(saved, folder)
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
