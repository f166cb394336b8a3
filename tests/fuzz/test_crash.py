"""A disk that fails or stops: what is replaced is the old one or the new one, whole, and a job done again ends the same.

A sample of the points; ``python -m tests.fuzz.crash`` tries all of them, see results/hold/crash.json.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from abnn.files import _exchange, left_behind, writing_directory
from tests.fuzz.crash import measure, try_point
from tests.fuzz.faults import MODES
from tests.fuzz.jobs import NAMES, jobs, make_fitted

STEPS = {"fit": 300, "evaluate": 110, "save": 13, "calibrate": 37, "drift": 5, "export": 17, "score": 67}
"""One of so many operations is tried, in each mode another one."""


@pytest.mark.no_cover  # all work is done in forks, whose counts are lost
@pytest.mark.parametrize("name", NAMES)
def test_a_struck_job_leaves_the_old_or_the_new_and_recovers(name: str, samples: Path, tmp_path: Path) -> None:
    job = jobs(make_fitted(samples, pages=False), pages=False)[name]
    operations, before, after = measure(job, tmp_path / "work")
    assert operations >= 5 and before != after  # one file: its folder, open, write, flush, rename
    for place, mode in enumerate(MODES):
        for number in range(1 + place, operations + 1, STEPS[name]):
            outcome = try_point(job, number, mode, before, after, tmp_path / "work")
            assert outcome in ("old", "new", "between"), f"operation {number} of {operations} {mode}: {outcome}"


def test_a_folder_is_replaced_where_the_system_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abnn.files._exchange", lambda first, second: False)
    for text in ("old", "new"):
        with writing_directory(tmp_path / "x") as folder:
            (folder / "a").write_text(text)
    assert (tmp_path / "x" / "a").read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["x"] and not left_behind(tmp_path / "x")


def test_exchange_of_what_is_not_there_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert not _exchange(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "a").is_dir() and not (tmp_path / "b").exists()
