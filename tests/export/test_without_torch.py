"""Exported models predict and are served where torch is not installed, and say what they say with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from abnn import cli
from abnn.cli.serve import listen
from abnn.data import InputForm
from abnn.data.form import resize
from tests.export.models import NAMES, picture_model
from tests.website.conftest import run_line
from website.blocks import blocks, commands

WITHOUT = """
import json, sys
for name in ("torch", "lightning_fabric", "matplotlib", "safetensors", "sklearn"):
    sys.modules[name] = None  # as if it were not installed
folder, picture, table, drift = sys.argv[1:5]
import abnn
from abnn.cli import main

try:
    abnn.attach
except ImportError as error:
    print(error)
for arguments in (["predict", folder, picture, table, "--format", "jsonl", "--drift", drift], ["predict", picture, picture]):
    sys.argv = ["abnn", *arguments]
    try:
        main()
    except SystemExit as end:
        print(end.code)

from fastapi.testclient import TestClient
from abnn.export import Exported
from abnn.serve import create_app

with TestClient(create_app(Exported(folder))) as client:
    print(json.dumps(client.get("/model").json()))
    with open(picture, "rb") as file:
        print(json.dumps(client.post("/predict?show_input=true", files={"image": file}).json()))
    print(client.get("/drift").json()["images"])
assert not [name for name, module in sys.modules.items() if name.startswith("torch") and module is not None]
"""


def test_predict_and_serve_in_an_environment_without_torch(folder: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (19, 23), dtype=np.uint8)
    picture, table, drift = tmp_path / "picture.png", tmp_path / "some.npz", tmp_path / "drift.json"
    Image.fromarray(pixels).save(picture)
    np.savez(table, images=random.integers(0, 256, (4, 30, 12), dtype=np.uint8), labels=np.zeros(4, np.int64))
    command = [sys.executable, "-c", WITHOUT, str(folder), str(picture), str(table), str(drift)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    missing, *rows, status, failed, about, answer, images = done.stdout.splitlines()
    assert missing == "torch is not installed; install it with: pip install 'abnn[torch]'"
    model = picture_model()
    x = [InputForm.of(model).images(each) for each in (pixels[None], np.load(table)["images"])]
    prediction = model.predict(np.concatenate(x))
    assert [json.loads(row)["verdict"] for row in rows] == prediction.verdict
    np.testing.assert_allclose([json.loads(row)["score"] for row in rows], prediction.score, rtol=1e-4, atol=1e-3)
    assert int(status) == {"accept": 0, "notice": 10, "reject": 11}[max(prediction.verdict)] and failed == "2"
    assert json.loads(drift.read_text())["seen"] == 5 and images == "1"
    said, described = json.loads(answer), json.loads(about)
    assert said["verdict"] == prediction.verdict[0] and said["class_name"] in NAMES and said["input"]["width"] == 8
    assert described["class_names"] == NAMES and not described["drawing"] and len(described["parts"]) > 5
    assert said["causes"] is not None and said["parts"]
    assert said["samples"]["names"] == ["without attachments", "with attachments"]


@pytest.mark.parametrize(
    ("height", "width", "new"),
    [
        (480, 640, (32, 32)),
        (28, 28, (8, 8)),
        (9, 13, (28, 31)),
        (333, 77, (64, 64)),
        (17, 400, (48, 1)),
        (7, 7, (7, 7)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_get_the_size_that_torch_gives_them(
    height: int, width: int, new: tuple[int, int], channels: int
) -> None:
    import torch

    random = np.random.default_rng(height)
    pictures = random.integers(0, 256, (2, channels, height, width), dtype=np.uint8)
    interpolate = torch.nn.functional.interpolate
    wanted = interpolate(torch.from_numpy(pictures), size=new, mode="bilinear", antialias=True)
    assert np.array_equal(resize(pictures, *new), wanted.numpy())  # to the bit
    form = [InputForm((1, *new), dtype, (0.4,), (0.3,), 0.9) for dtype in (torch.float32, np.dtype("float32"))]
    tensor, array = (each.images(np.moveaxis(pictures, 1, 3)) for each in form)
    assert np.array_equal(tensor.numpy(), array)


def test_options_that_an_exported_model_does_not_have(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "picture.png")
    for options, message in (
        (["--draws", "3"], "draws: got 3; accepted: 0"),
        (["--backbone", "resnet18"], "--backbone: got resnet18"),
        (["--device", "cuda"], "--device: got 'cuda'"),
    ):
        monkeypatch.setattr(sys, "argv", ["abnn", "predict", str(folder), str(tmp_path / "picture.png"), *options])
        with pytest.raises(SystemExit):
            cli.main()
        assert message in capsys.readouterr().err


@pytest.mark.no_cover
def test_the_command_exports_what_was_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = picture_model().save(tmp_path / "model", backbone=True)
    arguments = ["abnn", "export", str(saved), str(tmp_path / "out"), "--format", "torch"]
    arguments += ["--backbone", "tests.export.models:fresh_network"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0 and "with thresholds; equal to the model" in capsys.readouterr().out
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["export.json", "model.pt2"]


def test_the_page_about_exports(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines for the other machine and its code, with a folder that was exported; tests above run `abnn export`."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "out")
    Path("photos").mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint8)).save("photos/picture.png")
    served: list[object] = []
    monkeypatch.setattr("abnn.serve.server.run", lambda application, *rest: served.append(application))
    monkeypatch.setattr(sys.modules[listen.__module__], "listen", lambda host, port: listen(host, 0))
    code = blocks(Path(__file__).parents[2] / "docs" / "export.md")
    lines = [line for block in code if block.language == "bash" for line in commands(block)]
    own = [line for line in lines if not line.startswith(("pip ", "abnn score "))]  # which tests/batch runs
    assert own[0] == "abnn export my-model/ out/" and len(own) == 3
    for line in own[1:]:
        run_line(line)
    assert len(served) == 1
    scope: dict[str, Any] = {"x": np.zeros((2, 1, 8, 8), np.float32), "model": None}
    exec(next(block.code for block in code if "Exported" in block.code), scope)  # noqa: S102
    assert len(scope["answers"].verdict) == 2
