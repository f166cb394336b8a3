"""Every block of code in README, quick start and how-to pages runs as it stands there."""

from __future__ import annotations

import runpy
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import abnn
from abnn.cli.serve import listen
from abnn.networks.by_name import build_backbone
from tests.website.conftest import ELSEWHERE, QUICK_START, ROOT, run_commands, run_python
from website.blocks import Block, blocks, commands

HOW_TO = sorted(page for page in (ROOT / "docs" / "how-to").glob("*.md") if page.name != "index.md")


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
