"""What posteriors, draws and views are worth: one small job has every form, a record and a row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import abnn
from abnn.predict import Prediction
from research.worth import run
from research.worth.jobs import digits, zoo
from research.zoo import run as zoo_run


def test_a_job_is_measured_in_every_form_and_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo_run, "EPOCHS", 5)
    place = next(number for number, (name, *_) in enumerate(zoo(None)) if name == "perceptron-wine")
    arguments = ["zoo", "--output", str(tmp_path), "--part", f"{place}/50"]
    run.main(arguments)
    (path,) = tmp_path.rglob("*.json")
    record = json.loads(path.read_text())
    assert set(record["columns"]) == {form for form in run.FORMS if "views" not in form}  # a table has none
    assert all({"outliers", "accuracy"} <= set(columns) for columns in record["columns"].values())
    before = path.read_bytes()
    run.main(arguments)
    assert path.read_bytes() == before
    page = tmp_path / "page.md"
    page.write_text("<!-- abnn:table worth -->\n<!-- /abnn:table -->\n")
    run.main(["--table", "--output", str(tmp_path), "--into", str(page)])
    assert "| closed form | 1 |" in page.read_text() and "| default | 1 |" in page.read_text()


def test_without_posteriors_no_distance_counts(fitted_digits: abnn.Attached) -> None:
    """The score of a far input follows from what the networks say about it, and from nothing else."""
    model, combined = fitted_digits, fitted_digits.combined
    assert combined is not None
    said = [name for name in combined.task_parts if not name.startswith("widened")]
    others = [place for place, name in enumerate(combined.names) if name not in said]
    for name in ("linear", "inner"):
        assert not getattr(combined, name)[:, others].any() and getattr(combined, name).any()
    far = model.predict(1e4 * torch.rand(4, 1, 8, 8))
    assert float(far.score.max()) < 1e3  # T alone would be 1e6 and more


@pytest.fixture(scope="module")
def fitted_digits() -> abnn.Attached:
    torch.manual_seed(0)
    _, _, make = next(digits(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abnn.demo.digits.BACKBONE_EPOCHS", 1)
        job = make()
    model = abnn.attach(job.network, job.fit[0][0][None])
    with run.no_posteriors():
        abnn.fit(model, job.loader(job.fit, shuffle=True), epochs=0, progress=False)
    return model


def test_gains_are_over_jobs_that_have_both_forms() -> None:
    one = {"default": {"outliers": 0.9, "accuracy": 0.5}, "closed form": {"outliers": 0.8}}
    two = {"default": {"outliers": 0.7, "accuracy": 0.7}, "five views": {"outliers": 0.75, "accuracy": 0.7}}
    rows = run.table([{"columns": one}, {"columns": two}]).splitlines()
    assert any(row.startswith("| default | 2 | 80.0 | –") and "| 60.0 |" in row for row in rows)
    assert any(row.startswith("| closed form | 1 | -10.0 |") for row in rows)
    assert any(row.startswith("| five views | 1 | +5.0 |") and "| +0.0 |" in row for row in rows)


def test_views_of_the_plain_network_are_averaged() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3))
    x = torch.rand(2, 1, 28, 28)
    one, five = (run.PlainEnergy(network, views).predict(x) for views in (1, 5))
    assert isinstance(five, Prediction) and not torch.equal(one.probs, five.probs)
    torch.testing.assert_close(one.score, -network(x).logsumexp(1).detach())
