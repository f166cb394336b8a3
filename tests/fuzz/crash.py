"""A file system that fails or stops at the n-th operation: ``python -m tests.fuzz.crash --jobs 16 --into results/hold/crash.json``.

A job writes files; three of them are the commands ``abnn fit``, ``abnn evaluate`` and ``abnn score``, from the first file to the last. It is run
in a forked process in which the n-th write, rename, flush, ... either raises OSError (the disk is full, from then on or once),
ends the process at once, or ends it after half of the bytes. Each thing that the job replaces must then be the old one or the new
one, whole; and the job done again must end as if it had never been disturbed, to the bit. Every n of every job is tried.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from tests.fuzz.campaign import SECONDS, in_processes, on_one_core
from tests.fuzz.faults import MODES, STOPPED, FaultyFiles, in_child
from tests.fuzz.jobs import NAMES, Job, jobs, make_fitted
from tests.fuzz.subjects import make_samples
from tests.fuzz.watch import scratch_root

ERRORS = ("OSError", "FileFormatError", "InputError")


def measure(job: Job, scratch: Path) -> tuple[int, Any, Any]:
    """Return how many operations a job has when nothing fails, and the states before and after it."""

    def undisturbed() -> Any:
        folder = _empty(scratch)
        job.prepare(folder)
        before = job.state(folder)
        with FaultyFiles().in_place() as faults:
            job.work(folder)
        return [faults.count, before, job.state(folder)]

    status, answer = in_child(undisturbed)
    assert status == 0, answer
    return answer


def try_point(job: Job, number: int, mode: str, before: Any, after: Any, scratch: Path) -> str:
    """Let a job be struck at one operation and recover; return what it left, or an error in words.

    "old", "new": all of it is; "between": some parts are old and some new, each of them whole
    """
    folder = _empty(scratch)
    job.prepare(folder)

    def struck() -> None:
        with FaultyFiles(number, mode).in_place():
            job.work(folder)

    status, answer = in_child(struck)
    if status not in (0, 1, STOPPED) or (status == STOPPED) != mode.startswith("stops"):
        return f"error: exit status {status}, {answer}"
    if status == 1 and not (answer["error"] in ERRORS or answer["text"].startswith("2 ")):  # of a command: in one line
        return f"error: {answer}"
    status, left = in_child(lambda: job.state(folder))
    if status != 0 or any(left[part] not in (before[part], after[part]) for part in after):
        return f"error: neither the old state nor the new one, {left!r:.300}"

    def again() -> Any:
        job.work(folder)
        return job.state(folder)

    status, end = in_child(again)
    if status != 0 or end != after:
        return f"error: done again it ends otherwise, {end!r:.300}"
    return "old" if left == before else "new" if left == after else "between"


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


# -- all points -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """The operation at which a job is struck, how, and the states before and after; operation 0: count them."""

    job: str
    number: int = 0
    mode: str = MODES[0]
    before: Any = None
    after: Any = None


_JOBS: dict[str, Job] = {}


def _begin(samples: Path, pages: bool) -> None:
    on_one_core()
    _JOBS.update(jobs(samples, pages))
    if pages:
        importlib.import_module("matplotlib.pyplot")  # once, and not in each fork


def _run(point: Point) -> Any:
    with tempfile.TemporaryDirectory(dir=scratch_root()) as scratch:
        job, folder = _JOBS[point.job], Path(scratch) / "work"
        if point.number == 0:
            return measure(job, folder)
        return try_point(job, point.number, point.mode, point.before, point.after, folder)


def run(
    names: Sequence[str], modes: Sequence[str], processes: int, into: Path, pages: bool = True, first: int = 1
) -> dict[str, Any]:
    """Try every operation of these jobs, from the ``first`` on, in these modes, and return the record."""
    began, written = time.perf_counter(), 0.0
    record: dict[str, Any] = {
        **provenance(),
        "processes": processes,
        "pages": pages,
        "first": first,
        "jobs": {},
        "points": 0,
        "recovered": 0,
    }
    record["errors"] = []
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}

    def write() -> None:
        for name in record["jobs"]:
            record["jobs"][name]["outcomes"] = dict(sorted(outcomes[name].items()))
        record["seconds"] = round(time.perf_counter() - began, 1)
        write_json(into, record)

    with tempfile.TemporaryDirectory() as root:
        samples = make_fitted(make_samples(Path(root) / "samples"), pages)
        points = []
        for point, counted in in_processes(_run, map(Point, names), processes, _begin, samples, pages):
            if isinstance(counted, BaseException):
                raise counted
            operations, before, after = counted
            record["jobs"][point.job] = {"operations": operations}
            numbers = range(first, operations + 1)
            points += [Point(point.job, number, mode, before, after) for number in numbers for mode in modes]
        for point, outcome in in_processes(_run, points, processes, _begin, samples, pages):
            text = outcome if isinstance(outcome, str) else f"error: {outcome!r}"
            outcomes[point.job][f"{point.mode}: {text.partition(':')[0]}"] += 1
            record["points"] += 1
            record["recovered"] += not text.startswith("error")
            if text.startswith("error"):
                record["errors"].append(f"{point.job}, operation {point.number} {point.mode}: {text}"[:800])
            if time.perf_counter() - written > SECONDS:
                write()
                written = time.perf_counter()
        write()
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path("results/hold/crash.json"), help="the record")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes")
    parser.add_argument("--only", nargs="+", default=NAMES, choices=NAMES, help="what is struck")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES, help="how")
    parser.add_argument("--no-pages", action="store_true", help="commands draw no page, which takes half of the time")
    parser.add_argument(
        "--first", type=int, default=1, help="the operation to begin with, where others were tried before"
    )
    options = parser.parse_args()
    on_one_core()
    record = run(options.only, options.modes, options.jobs, options.into, not options.no_pages, options.first)
    print(json.dumps({key: record[key] for key in ("points", "recovered", "jobs", "errors", "seconds")}, indent=2))
    raise SystemExit(1 if record["errors"] else 0)


if __name__ == "__main__":
    main()
