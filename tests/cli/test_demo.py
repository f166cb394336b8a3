"""The embedded example, small: from the command to page, table, records and a model that can be loaded."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

import abnn
from abnn.cli import app, main
from abnn.data import Labelled
from abnn.demo import digits as demo
from abnn.evaluate.records import find_records
from tests.cli.conftest import draw_fewer


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    data = demo.load_digits()
    small = [Labelled(*(values[:200] for values in getattr(data, field.name))) for field in fields(data)]
    with pytest.MonkeyPatch.context() as patch:
        draw_fewer(patch)
        patch.setattr(demo, "EPOCHS", 1)
        patch.setattr(demo, "BACKBONE_EPOCHS", 2)
        patch.setattr(demo, "load_digits", lambda seed: type(data)(*small))
        result = CliRunner().invoke(app, ["demo", "--output", str(folder), "--quiet"])
    assert result.exit_code == 0, result.output
    return folder, result.output


def test_prints_both_networks_side_by_side(output: tuple[Path, str]) -> None:
    text = " ".join(output[1].split())
    for words in (
        "plain",
        "attached",
        "AUROC",
        "accuracy",
        "report.html",
        "kB beside the network: attachments, closed form, score",
    ):
        assert words in text


def test_page_stands_alone(output: tuple[Path, str]) -> None:
    page = (output[0] / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "") and 'src="data:' in page
    assert "handwritten digits" in page and "photographs" in page


def test_records_hold_both_evaluations(output: tuple[Path, str]) -> None:
    records = find_records(output[0] / "records", experiment="demo")
    assert sorted(record.name for record in records) == ["attached network", "plain network"]
    assert all(record.seed == 0 and record.config["data"]["sha256"] for record in records)
    assert all(path in record.numbers for record in records for path in demo.COLUMNS.values())


def test_saved_model_decides(output: tuple[Path, str]) -> None:
    model = abnn.load(output[0] / "model")
    x = demo.load_digits().test.x[:20]
    assert model.triage is not None and set(model.predict(x).verdict) <= {"accept", "notice", "reject"}
    assert model.extra["class_names"] == [str(digit) for digit in range(10)]


def test_errors_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["abnn", "report", "/nowhere/at/all.json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("abnn: ")


def test_version() -> None:
    assert CliRunner().invoke(app, ["--version"]).output.strip() == f"abnn {abnn.__version__}"
