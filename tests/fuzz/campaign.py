"""Many cases in several processes: ``python -m tests.fuzz.campaign --jobs 16 --into results/hold/fuzz.json``.

Case number n of a kind is always the same for one seed, so that a campaign can be shared between machines: by seeds, or by
ranges of cases, ``--cases folders=0:50000 requests=1000``. The record is written again every few seconds: one that was stopped
tells what it did. ``--case KIND NUMBER`` runs one case alone, to look at it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from tests.fuzz.cases import Failure, generator, run_files, run_picture, warm_up
from tests.fuzz.requests import run_request, running
from tests.fuzz.subjects import make_samples, open_samples, write_files
from tests.fuzz.watch import Violation, bound_memory, scratch_root

PORTION = 250
COUNTS = {"folders": 100_000, "requests": 100_000, "images": 10_000}
FOLDERS = ("model", "model", "model", "model", "method", "method", "scores", "drift", "record", "arrays", "packed")
"""Which example the n-th folder case changes, in turn; ``FOLDERS`` and the rest of them."""
ORDER = (*FOLDERS, "features", "checkpoint", "weights", "export", "export")
MOST_FAILURES = 200  # that are written down in words
SECONDS = 5.0  # between two writes of a record


@dataclass(frozen=True)
class Portion:
    """Some cases of a kind, from ``first`` to before ``last``."""

    kind: str
    seed: int
    first: int
    last: int


@dataclass
class Outcome:
    """What came of some cases; ``seconds`` of all and ``slowest`` of one are those of computing."""

    portion: Portion
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0
    slowest: float = 0.0

    def fail(self, text: str) -> None:
        self.counts["failed"] += 1
        self.failures.append(text[:1500])


class Worker:
    """All that cases need, made once in each process; ``samples`` as :func:`make_samples` made them."""

    def __init__(self, samples: Path) -> None:
        torch.set_num_threads(1)
        self.scratch = Path(tempfile.mkdtemp(prefix="worker.", dir=samples.parent))
        self.folder = self.scratch / "case"
        self.subjects = open_samples(samples)
        warm_up()
        self.expected = {}
        for name, subject in self.subjects.items():
            write_files(self.folder, subject.files)
            self.expected[name] = subject.read(self.folder)
        self.stack = contextlib.ExitStack()
        self.client = self.stack.enter_context(running(samples / "model"))

    def case(self, kind: str, seed: int, number: int) -> str:
        """Run one case and return what came of it."""
        rng = generator(kind, seed, number)
        if kind == "images":
            return run_picture(rng, self.folder)
        if kind == "requests":
            return run_request(rng, self.client, self.folder)
        name = ORDER[number % len(ORDER)]
        if name not in self.subjects:
            return f"{name}: skipped"
        return f"{name}: {run_files(rng, self.subjects[name], self.expected[name], self.folder)}"


_WORKER: Worker | None = None


def _begin(samples: Path, quiet: bool = True) -> None:
    global _WORKER
    on_one_core()
    _WORKER = Worker(samples)
    bound_memory()
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders in C complain there about every picture


def _end() -> None:
    """Close the application of this process, if it has one."""
    if _WORKER is not None:
        _WORKER.stack.close()


def _run(portion: Portion) -> Outcome:
    assert _WORKER is not None
    outcome, began = Outcome(portion), time.process_time()
    for number in range(portion.first, portion.last):
        started = time.process_time()
        try:
            outcome.counts[_WORKER.case(portion.kind, portion.seed, number)] += 1
        except Failure as failure:
            outcome.fail(f"{portion.kind} {number}: {failure}")
        except (Exception, Violation):  # noqa: BLE001, of the campaign itself: it is told, and the others are run
            outcome.fail(f"{portion.kind} {number}, outside of the case: {traceback.format_exc()}")
        outcome.slowest = max(outcome.slowest, time.process_time() - started)
    outcome.seconds = time.process_time() - began
    return outcome


def in_processes(
    work: Callable[[Any], Any], tasks: Iterable[Any], jobs: int, begin: Callable[..., None], *arguments: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield (task, result) in the order in which they end; the result of a task whose process died is an exception.

    begin  called with ``arguments`` in each process before its first task
    """
    if jobs == 1:
        begin(*arguments)
        for task in tasks:
            yield task, work(task)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), begin, arguments) as pool:
        futures = {pool.submit(work, task): task for task in tasks}
        for future in as_completed(futures):
            yield futures[future], future.exception() or future.result()


def on_one_core() -> None:
    """Let this process and those that it starts compute on one core each: forks and bits depend on it."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)


def run(cases: dict[str, range], seed: int, jobs: int, into: Path, quiet: bool = True) -> dict[str, Any]:
    """Run a campaign and return its record."""
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in cases}
    core_seconds = dict.fromkeys(cases, 0.0)
    limits = {kind: [each.start, each.stop] for kind, each in cases.items()}
    record: dict[str, Any] = {"seed": seed, "jobs": jobs, "asked": limits, **provenance(), "failures": []}
    began, written, slowest = time.perf_counter(), 0.0, 0.0
    root = Path(tempfile.mkdtemp(prefix="abnn-fuzz.", dir=scratch_root()))

    def write() -> None:
        record["cases"] = {kind: each.total() for kind, each in counts.items()}
        record["outcomes"] = {kind: dict(sorted(each.items())) for kind, each in counts.items()}
        record["seconds"] = round(time.perf_counter() - began, 1)
        record["core_seconds"] = {kind: round(seconds, 1) for kind, seconds in core_seconds.items()}
        record["slowest_case"] = round(slowest, 2)
        write_json(into, record)

    try:
        samples = make_samples(root / "samples")
        for portion, outcome in in_processes(_run, list(_portions(cases, seed)), jobs, _begin, samples, quiet):
            if not isinstance(outcome, Outcome):
                died, outcome = outcome, Outcome(portion)
                outcome.fail(f"{portion}: its process died, {died!r}")
            counts[portion.kind].update(outcome.counts)
            record["failures"] = [*record["failures"], *outcome.failures][:MOST_FAILURES]
            core_seconds[portion.kind] += outcome.seconds
            slowest = max(slowest, outcome.slowest)
            if time.perf_counter() - written > SECONDS:
                write()
                written = time.perf_counter()
        write()
    finally:
        _end()
        shutil.rmtree(root, ignore_errors=True)
    return record


def _portions(cases: dict[str, range], seed: int) -> Iterator[Portion]:
    """Yield portions of all kinds in turn, so that a campaign that is stopped has some of each."""
    for step in range(max(len(each) for each in cases.values()) // PORTION + 1):
        for kind, each in cases.items():
            part = each[step * PORTION : (step + 1) * PORTION]
            if part:
                yield Portion(kind, seed, part.start, part.stop)


def _cases(text: str) -> tuple[str, range]:
    """Return the kind and the numbers of ``folders=1000`` or ``folders=500:1000``."""
    kind, _, limits = text.partition("=")
    first, _, last = limits.rpartition(":")
    if kind not in COUNTS or not last.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(COUNTS)} with =COUNT or =FIRST:LAST")
    return kind, range(int(first or 0), int(last))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = [(kind, range(count)) for kind, count in COUNTS.items()]
    parser.add_argument("--cases", type=_cases, nargs="+", default=every, metavar="KIND=COUNT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes")
    parser.add_argument("--into", type=Path, default=Path("results/hold/fuzz.json"), help="the record")
    parser.add_argument("--case", nargs=2, metavar=("KIND", "NUMBER"), help="run one case alone")
    options = parser.parse_args()
    on_one_core()
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            _begin(make_samples(Path(folder) / "samples"), quiet=False)
            assert _WORKER is not None
            print(_WORKER.case(options.case[0], options.seed, int(options.case[1])))
            _end()
        return
    record = run(dict(options.cases), options.seed, options.jobs, options.into)
    print(json.dumps({name: record[name] for name in ("cases", "outcomes", "seconds", "core_seconds")}, indent=2))
    for failure in record["failures"][:20]:
        print(failure)
    raise SystemExit(1 if record["failures"] else 0)


if __name__ == "__main__":
    main()
