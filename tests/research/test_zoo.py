"""The zoo: its data and networks fit together, and a fit leaves a record with a row in the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from research.zoo import run
from research.zoo.data import JOBS
from research.zoo.networks import FITS


def test_there_are_fifty_fits_of_many_networks_and_data_sets() -> None:
    assert len(FITS) * len(run.SEEDS) == 50
    assert len({name for name, _, _ in FITS}) >= 12 and len({data for _, data, _ in FITS}) >= 6


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_parts_that_do_not_overlap_and_outliers_of_one_form(name: str) -> None:
    job = JOBS[name](0)
    rows = [{tuple(row.flatten().tolist()) for row in part[0]} for part in (job.train, job.test)]
    assert len(rows[0] & rows[1]) <= 1  # one table has a row twice
    for x, y in (job.train, job.calibrate, job.test):
        assert len(x) == len(y) >= 40 and int(y.max()) == job.classes - 1
    assert all(
        each.shape[1:] == job.train[0].shape[1:] and each.dtype == job.train[0].dtype for each in job.outliers.values()
    )


def test_a_fit_is_recorded_once_and_has_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SEEDS", (0,))
    monkeypatch.setattr(run, "EPOCHS", 5)
    place = next(number for number, (name, data, _) in enumerate(FITS) if (name, data) == ("perceptron", "wine"))
    arguments = ["--output", str(tmp_path), "--part", f"{place}/{len(FITS)}"]
    run.main(arguments)
    (path,) = tmp_path.glob("*.json")
    before = path.read_bytes()
    run.main(arguments)
    assert path.read_bytes() == before
    page = tmp_path / "page.md"
    page.write_text("<!-- abnn:table zoo -->\n<!-- /abnn:table -->\n")
    run.main(["--table", "--output", str(tmp_path), "--into", str(page)])
    assert "| perceptron | wine | 1 |" in page.read_text() and "1 fits" in page.read_text()
