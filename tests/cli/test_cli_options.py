"""What all commands share: options from a file, what a run used, a model in the folder above, files of rows, the doctor."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import parquet
from typer.testing import CliRunner, Result

import abnn
from abnn.cli import app
from abnn.cli._common import find_model, name_of
from abnn.cli.doctor import extras
from abnn.errors import FileFormatError, InputError
from abnn.triage import Triage

runner = CliRunner()


def call(*arguments: object) -> Result:
    return runner.invoke(app, [str(each) for each in arguments])


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a fit leaves: model/ in a folder."""
    torch.manual_seed(0)
    network = abnn.build_backbone("paper-resnet", 10, 1, width=4, blocks=1, stem="small", kaiming=False).eval()
    model = abnn.attach(network, torch.rand(1, 1, 8, 8))
    quantiles = tuple(place / 100 for place in range(101))
    model.triage = Triage(1.0, 2.0, 0.05, 0.01, "entropy", 0, 0, 100, quantiles)
    folder = tmp_path_factory.mktemp("own") / "birds"
    model.save(folder / "model", backbone=True)
    return folder


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    path = tmp_path_factory.mktemp("images") / "one.png"
    Image.new("L", (8, 8), 90).save(path)
    return path


def test_a_model_is_found_in_the_folder_above(output: Path, image: Path) -> None:
    assert find_model(output) == find_model(output / "model") == output / "model"
    assert name_of(output) == name_of(output / "model") == "birds"
    above, own = (call("predict", folder, image, "-f", "jsonl", "-q") for folder in (output, output / "model"))
    assert above.stdout == own.stdout != ""


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_rows_go_to_a_file_with_the_options_beside_it(output: Path, image: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"rows.{ending}"
    shown = json.loads(call("predict", output, image, "-f", "jsonl", "-q").stdout)
    result = call("predict", output, image, image, "--output", file, "--device", "cpu", "--exit-zero")
    assert result.exit_code == 0 and "2 inputs" in result.output
    if ending == "parquet":
        rows: list[Any] = parquet.read_table(file).to_pylist()
    elif ending == "csv":
        rows = list(csv.DictReader(file.open()))
    else:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == 2 and float(rows[0]["score"]) == pytest.approx(shown["score"], rel=1e-6)
    assert rows[1]["verdict"] == shown["verdict"]
    used = tmp_path / "rows.run.toml"
    assert 'device = "cpu"' in used.read_text()
    file.unlink()
    assert call("predict", "--config", used).exit_code == 0 and file.exists()  # the same run again


def test_odd_names_come_back_from_the_file_of_options(output: Path, image: Path, tmp_path: Path) -> None:
    odd = shutil.copy(image, tmp_path / 'a\x7f\t"\\ ü.png')
    file = tmp_path / "rows.csv"
    assert call("predict", output, odd, "--output", file, "--exit-zero").exit_code == 0
    file.unlink()
    assert call("predict", "--config", tmp_path / "rows.run.toml").exit_code == 0 and file.exists()


def test_other_endings_are_refused_before_any_work(output: Path, image: Path, tmp_path: Path) -> None:
    error = call("predict", output, image, "--output", tmp_path / "rows.xlsx").exception
    assert isinstance(error, InputError) and ".parquet, .csv or .jsonl" in str(error)


def test_options_from_a_file(output: Path, image: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.toml"
    config.write_text(f'model = "{output}"\ninputs = ["{image}"]\nformat = "csv"\nexit-zero = true\nquiet = true\n')
    assert call("predict", "--config", config).stdout.startswith("input,label")
    assert call("predict", "--config", config, "-f", "jsonl").stdout.startswith("{")  # the command line wins
    config.write_text('formt = "csv"')
    error = call("predict", "--config", config).exception
    assert isinstance(error, InputError) and "Did you mean 'format'?" in str(error)
    config.write_text("format = ")
    assert isinstance(call("predict", "--config", config).exception, FileFormatError)


def test_every_command_has_the_same_names() -> None:
    for command in app.registered_commands:
        names = {name for each in _parameters(command) for name in each.opts}
        assert {"--quiet", "-q"} <= names, command
        assert "--accelerator" not in names


def _parameters(command: Any) -> list[Any]:
    import typer.main

    return typer.main.get_command_from_info(command, pretty_exceptions_short=False, rich_markup_mode=None).params


def test_names_are_suggested(output: Path) -> None:
    assert "Did you mean 'predict'" in call("predcit").output
    assert "--device" in call("predict", output, "--devcie", "cpu").output
    assert "Did you mean 'jsonl'" in str(call("predict", output, "x.png", "-f", "jsnl").exception)


def test_the_doctor_says_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    result = call("doctor", "--no-measure")
    assert f"torch {torch.__version__}" in result.output and "--device auto means: " in result.output
    assert "fastapi" in str(extras()) and "dev" not in extras()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    result = call("doctor", "-q", "--no-measure")
    assert result.exit_code == 1 and "unset OMP_NUM_THREADS" in result.output and "torch " not in result.stdout
