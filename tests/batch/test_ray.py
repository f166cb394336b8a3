"""Jobs on Ray: workers that are killed, errors of workers, and a driver that only schedules. One small cluster for all tests."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from abnn.batch.job import ScoreConfig, score
from abnn.errors import AbnnError
from tests.batch.conftest import Here, png

TWO = ScoreConfig(size=4, batch_size=2, ray="auto")  # the cluster that is there


def workers() -> list[int]:
    """Return the numbers of the processes of this user in which Ray's workers score."""
    found = []
    for place in Path("/proc").iterdir():
        own = place.name.isdigit() and str(os.getpid()) in _ancestors(int(place.name))
        if own and (place / "cmdline").read_bytes().startswith(b"ray::MapWorker"):
            found.append(int(place.name))
    return found


def _ancestors(number: int) -> list[str]:
    line = []
    while number > 1:
        try:
            number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        line.append(str(number))
    return line


def kill_one(output: Path, killed: list[int]) -> None:
    """Kill a worker as soon as the first part is there."""
    while not list(output.glob("part-*")):
        time.sleep(0.01)
    for number in workers()[:1]:
        os.kill(number, signal.SIGKILL)
        killed.append(number)


@pytest.mark.no_cover
def test_a_killed_worker_costs_nothing_but_time(ray: object, saved: Path, pictures: Path, tmp_path: Path) -> None:
    for number in range(20, 120):
        (pictures / "1" / f"{number}.png").write_bytes(png(number))
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(tmp_path / "out", killed), daemon=True)
    killer.start()
    summary = score(saved, pictures, tmp_path / "out", TWO, progress=False)
    killer.join(60)
    assert len(killed) == 1 and summary["inputs"] == 121
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abnn.batch.job.run_workers", Here())
        assert score(saved, pictures, tmp_path / "calm", TWO, progress=False) == summary
    assert pq.read_table(tmp_path / "out").equals(pq.read_table(tmp_path / "calm"))


def test_what_a_worker_refuses_is_said_as_it_is_elsewhere(
    ray: object, saved: Path, pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AbnnError, match="^backbone: got 'no.such:thing', which fails with ModuleNotFoundError.*go on"):
        score(saved, pictures, tmp_path / "out", ScoreConfig(backbone="no.such:thing", ray="auto"), progress=False)
    assert "Traceback" not in capfd.readouterr().err
    assert not list((tmp_path / "out").glob("part-*"))
