"""abnn sweep: trials that are missing run on Ray Tune, finished ones are kept, and the result is a table."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from abnn.cli.steps import sweeping
from abnn.cli.steps.sweeping import make_trials, run, run_trial
from abnn.cli.sweep import SweepRequest
from abnn.errors import InputError
from tests.cli.test_cli_fit import HERE, place

__all__ = ["place"]
pytestmark = pytest.mark.usefixtures("short_score")


def request_of(place: Path, output: Path, **changes: Any) -> SweepRequest:
    own: dict[str, Any] = {"backbone": HERE, "weights": place / "weights.pt", "data": place / "images", "workers": 1}
    return SweepRequest(**{**own, "output": output, "lr": "1e-3,1e-2", "epochs": "0,1", "device": "cpu", **changes})


def test_every_combination_is_a_trial(place: Path, tmp_path: Path) -> None:
    trials = make_trials(request_of(place, tmp_path, last="1,2"))
    assert [(each.lr, each.epochs, each.last) for each in trials[:3]] == [(1e-3, 0, 1), (1e-3, 0, 2), (1e-3, 1, 1)]
    assert len(trials) == len({each.output for each in trials}) == 8
    with pytest.raises(InputError, match="--lr: got '1e-3;1'"):
        make_trials(request_of(place, tmp_path, lr="1e-3;1"))


def test_a_stopped_sweep_goes_on_and_ends_in_a_table(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    request, ran = request_of(place, tmp_path), []

    def here(request: SweepRequest, missing: list[Any]) -> None:
        for trial in missing:
            if len(ran) == 2:
                raise KeyboardInterrupt
            run_trial(trial, sweeping._identity(request))
            ran.append((trial.lr, trial.epochs))

    monkeypatch.setattr(sweeping, "_run_missing", here)
    with pytest.raises(KeyboardInterrupt):
        run(request)
    first = {path: path.read_bytes() for path in (tmp_path / "trials").glob("*.json")}
    assert len(first) == 2
    ran.clear()
    run(request)
    assert ran == [(1e-2, 0), (1e-2, 1)] and {path: path.read_bytes() for path in first} == first
    rows = list(csv.DictReader((tmp_path / "sweep.csv").open()))
    assert {(float(row["lr"]), int(row["epochs"])) for row in rows} == {(lr, n) for lr in (1e-3, 1e-2) for n in (0, 1)}
    means = [float(row["mean"]) for row in rows]
    assert means == sorted(means, reverse=True) and all(0 <= float(row["far"]) <= 1 for row in rows)
    assert "4 trials, 2 of them done already" in capsys.readouterr().out
    with pytest.raises(InputError, match="is of another sweep"):
        run(request_of(place, tmp_path, seed=1))
    (tmp_path / "trials" / "0.json").write_text("{}")
    with pytest.raises(InputError, match="0.json is damaged"):
        run(request)


def test_trials_run_on_ray_tune(ray: object, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(request_of(place, tmp_path, lr="1e-3", epochs="0", quiet=True))
    (row,) = csv.DictReader((tmp_path / "sweep.csv").open())
    assert float(row["accuracy"]) > 0.9 and row["last"] == ""
