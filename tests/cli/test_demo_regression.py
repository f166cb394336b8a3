"""`abnn demo regression`: numbers with bands on embedded data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import abnn
from abnn.cli import app
from abnn.demo import regression as demo


def test_intervals_hold_and_moved_patients_are_found(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["demo", "regression", "--output", str(tmp_path), "--quiet"])
    assert result.exit_code == 0, result.output
    numbers = json.loads((tmp_path / "regression-seed0.json").read_text())["metrics"]
    # 110 patients calibrate and 111 test: the share inside has a standard deviation of about 0.04
    assert numbers["coverage"] == pytest.approx(0.9, abs=0.1)
    assert numbers["moved auroc"] > 0.95 and numbers["moved accepted"] < 0.1
    assert numbers["rmse"] < 1.03 * numbers["plain rmse"] < 70
    assert (tmp_path / "regression.png").stat().st_size > 10_000
    model = abnn.load(tmp_path / "regression-model", demo.Progression(10))
    assert model.task.name == "regression" and model.triage is not None


def test_other_names_are_refused() -> None:
    result = CliRunner().invoke(app, ["demo", "regresion"])
    assert result.exit_code != 0
