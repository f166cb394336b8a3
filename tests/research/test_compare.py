"""The comparison and the commands: records per method and seed, skipped where they exist."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from abnn.baselines import REGISTRY, load_trained, make_method
from abnn.baselines.posthoc import POSTHOC
from abnn.data.digits import Labelled, load_digits
from abnn.errors import InputError
from abnn.evaluate.records import find_records, read_record
from abnn.train.checkpoint import Run
from research.cli.experiments import compare, parse_settings, train
from research.compare import COLUMNS, METHODS, columns_of, run_compare, run_method
from research.tables import render
from research.tasks import load_task

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(train)
app.command()(compare)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth of the digits: what is tested here does not depend on what is learned."""
    data = load_digits(0)
    parts = {field.name: Labelled(*(each[:64] for each in getattr(data, field.name))) for field in fields(data)}
    monkeypatch.setattr("research.tasks.load_digits", lambda seed: replace(data, **parts))


def test_the_comparison_has_every_method() -> None:
    assert {name.split(":")[0] for name in METHODS} == set(REGISTRY)
    task = load_task("digits")
    assert columns_of(task) == COLUMNS
    for each in METHODS:
        name, _, variant = each.partition(":")
        assert task.method(name, variant or "reference").name == name


def test_records_are_made_once(few: None, tmp_path: Path) -> None:
    notes: list[str] = []
    settings: dict[str, Any] = {"epochs": 1, "posthoc": ["energy"], "progress": False, "note": notes.append}
    paths = run_compare(["vboe:authors"], [0], tmp_path, **settings)
    names = ["vboe (authors)", "energy (post-hoc)"]
    assert [read_record(path).name for path in paths] == names
    records = find_records(tmp_path, experiment="compare-digits")
    assert len(records) == 2
    times = {path: path.stat().st_mtime_ns for path in paths}
    assert run_compare(["vboe:authors"], [0], tmp_path, **settings) == paths
    assert times == {path: path.stat().st_mtime_ns for path in paths}
    assert notes[:2] == [f"seed 0: {name}" for name in names]
    assert notes[2:] == [f"seed 0: {name} (recorded before in {path})" for name, path in zip(names, paths)]
    with pytest.raises(InputError, match="made with other settings"):
        run_compare(["vboe:authors"], [0], tmp_path, epochs=2, posthoc=[], progress=False)
    paths[1].write_text("{")  # a damaged record is made again
    run_compare([], [0], tmp_path, **settings)
    assert read_record(paths[1]).score == "energy"
    assert all(name in render(records, COLUMNS, rows=names) for name in names)


def test_post_hoc_scores_are_those_of_the_threshold_network(few: None, tmp_path: Path) -> None:
    paths = run_compare(["threshold"], [1], tmp_path, False, posthoc=["max-logit"], epochs=1)
    plain, score = (read_record(path) for path in paths)
    assert plain.numbers["accuracy.handwritten digits"] == score.numbers["accuracy.handwritten digits"]
    assert score.score == "max-logit"
    assert plain.config["method"] == score.config["method"]


def test_wrong_names() -> None:
    with pytest.raises(InputError, match="method: got 'wods'"):
        run_compare(["wods"])
    with pytest.raises(InputError, match="variant of method 'oe'"):
        run_compare(["oe:paper"])
    with pytest.raises(InputError, match="posthoc: got 'enrgy'"):
        run_compare(["oe"], posthoc=["enrgy"])
    with pytest.raises(InputError, match="data: got 'imagenet'.*accepted: 'digits', 'mnist'"):
        run_compare(["oe"], data="imagenet")
    with pytest.raises(InputError, match="method: got 'x'"):
        load_task("digits").method("x")
    assert "energy" in POSTHOC


def test_validation_looks_at_other_sets() -> None:
    tests, choices = load_task("digits"), load_task("digits", validation=True)
    assert [name for name, _, _ in choices.sets] == ["handwritten digits", "printed digits", "patterns"]
    assert all(len(left[2].x) != len(right[2].x) for left, right in zip(tests.sets, choices.sets))


def test_a_method_learns_the_digits() -> None:
    task = load_task("digits")
    evaluation, trained = run_method(task, task.method("threshold"), 5, 0, False)
    assert evaluation.sets[0].correct.mean() > 0.4  # chance is 0.1, 30 epochs give 0.99
    assert trained.method == make_method("threshold", **task.settings["threshold"])


def test_the_train_command(few: None, tmp_path: Path) -> None:
    arguments = ["train", "--method", "woods", "--data", "digits", "--epochs", "2", "--seed", "1", "--quiet"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "out"), "--set", "share=0.2"])
    assert result.exit_code == 0, result.output
    assert "woods" in result.output and "Model:" in result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model", "records"]
    record = read_record(tmp_path / "out" / "records" / "train-digits" / "woods-seed1.json")
    assert record.score == "energy" and record.config["method"]["share"] == 0.2
    model = load_trained(tmp_path / "out" / "model")
    assert model.extra["data"]["name"] == "digits"
    accuracy = (model.predict(load_task("digits", 1).sets[0][2].x).label == load_task("digits", 1).sets[0][2].y).float()
    assert accuracy.mean().item() == pytest.approx(record.numbers["accuracy.handwritten digits"])


def test_a_killed_train_command_goes_on(few: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["train", "--method", "threshold", "--epochs", "2", "--quiet", "--output"]
    assert CliRunner().invoke(app, [*arguments, str(tmp_path / "whole")]).exit_code == 0
    original = Run.save
    with monkeypatch.context() as patch:

        def save_and_die(self: Run) -> None:
            original(self)
            raise KeyboardInterrupt

        patch.setattr(Run, "save", save_and_die)
        assert CliRunner().invoke(app, [*arguments, str(tmp_path / "killed")]).exit_code != 0
    assert [path.name for path in (tmp_path / "killed").rglob("*.safetensors")] == ["checkpoint.safetensors"]
    # What is left where a kill came in the middle of writing.
    (tmp_path / "killed" / "unfinished" / ".checkpoint.safetensors.x1y2z3").write_bytes(b"half")
    assert CliRunner().invoke(app, [*arguments, str(tmp_path / "killed")]).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == ["model", "records"]
    whole, again = (
        read_record(tmp_path / part / "records/train-digits/threshold-seed0.json") for part in ("whole", "killed")
    )
    assert whole.numbers == again.numbers


def test_the_compare_command(few: None, tmp_path: Path) -> None:
    arguments = ["compare", "--method", "threshold", "--posthoc", "none", "--seeds", "1", "--epochs", "1", "--quiet"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "seed 0: threshold" in result.output and "AUROC" in result.output


def test_settings_from_the_command_line() -> None:
    assert parse_settings(["lr=0.01", "form=head", "ce_factor=null", 'outliers={"name": "noise"}']) == {
        "lr": 0.01,
        "form": "head",
        "ce_factor": None,
        "outliers": {"name": "noise"},
    }
    for wrong in ("lr", "=3"):
        with pytest.raises(InputError, match="--set"):
            parse_settings([wrong])
