"""Workers as processes of this machine: one that dies costs nothing but time, and what they refuse is said as elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from abnn.batch import processes
from abnn.batch.job import ScoreConfig, score
from abnn.batch.processes import Process
from abnn.batch.worker import Work
from abnn.errors import AbnnError
from tests.batch.conftest import Here, png

ONE = ScoreConfig(size=4, batch_size=2, workers=1, device="cpu")


def workers_of(parent: int) -> list[int]:
    """Return the numbers of the processes that another one started and that score."""
    found = []
    for place in Path("/proc").iterdir():
        try:
            own = place.name.isdigit() and int((place / "stat").read_text().rpartition(")")[2].split()[1]) == parent
            if own and b"abnn.batch.processes" in (place / "cmdline").read_bytes():
                found.append(int(place.name))
        except OSError:  # it has ended
            continue
    return found


def wait_for_parts(output: Path) -> None:
    end = time.monotonic() + 120
    while not list(output.glob("part-*")) and time.monotonic() < end:
        time.sleep(0.01)


def test_a_killed_worker_costs_nothing_but_time(saved: Path, pictures: Path, tmp_path: Path) -> None:
    for number in range(20, 120):
        (pictures / "1" / f"{number}.png").write_bytes(png(number))
    killed: list[int] = []

    def kill() -> None:
        wait_for_parts(tmp_path / "out")
        killed.extend(workers_of(os.getpid()))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    summary = score(saved, pictures, tmp_path / "out", ONE, progress=False)
    killer.join(60)
    assert len(killed) == 1 and summary["inputs"] == 121 and workers_of(os.getpid()) == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("abnn.batch.job.run_workers", Here())
        assert score(saved, pictures, tmp_path / "calm", ONE, progress=False) == summary
    assert pq.read_table(tmp_path / "out").equals(pq.read_table(tmp_path / "calm"))


def test_workers_end_with_their_driver(saved: Path, pictures: Path, tmp_path: Path) -> None:
    for number in range(20, 220):
        (pictures / "1" / f"{number}.png").write_bytes(png(number))
    command = [sys.executable, "-m", "abnn", "score", str(saved), str(pictures), str(tmp_path / "out"), "--quiet"]
    with subprocess.Popen([*command, "--size", "1", "--workers", "1"]) as driver:
        wait_for_parts(tmp_path / "out")
        (worker,) = workers_of(driver.pid)
        driver.kill()
    end = time.monotonic() + 30
    while Path(f"/proc/{worker}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{worker}").exists()
    assert 0 < len(list((tmp_path / "out").glob("part-*"))) < 221


def test_what_a_worker_refuses_is_said_as_it_is_elsewhere(
    saved: Path, pictures: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AbnnError, match="^backbone: got 'no.such:thing', which fails with ModuleNotFoundError.*go on"):
        score(saved, pictures, tmp_path / "out", ScoreConfig(backbone="no.such:thing", workers=1), progress=False)
    assert "Traceback" not in capfd.readouterr().err
    assert not list((tmp_path / "out").glob("part-*"))


def test_a_shard_that_kills_workers_ends_the_job(
    saved: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "START", "import sys; sys.stdin.readline(); sys.exit(7)")
    with pytest.raises(AbnnError, match="died 3 times at shard 0, the last with exit status 7.*go on"):
        score(saved, pictures, tmp_path / "out", ONE, progress=False)


def test_each_gpu_has_a_worker_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(model="m", fingerprint="f", output="o", root="r", size=4, batch_size=2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert Process(work, 1).environment()["CUDA_VISIBLE_DEVICES"] == "1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    assert Process(work, 1).environment()["CUDA_VISIBLE_DEVICES"] == "6"
    assert Process(work, None).environment()["CUDA_VISIBLE_DEVICES"] == "4,6"
