"""Many cases in several processes: ``python -m tests.fuzz.campaign --folders 100000 --requests 100000 --images 10000 --seed 0``.

Case number n of a kind is always the same for one seed. The record results/hold/fuzz.json is written after every portion; when
stopped, the same command goes on with the portions that are missing. ``--case KIND NUMBER`` runs one case alone, to look at it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from tests.fuzz.cases import Failure, generator, run_files, run_picture, warm_up
from tests.fuzz.requests import run_request, running
from tests.fuzz.subjects import make_samples, open_samples, write_files
from tests.fuzz.watch import bound_memory, scratch_root

PORTION = 250
FOLDERS = ("model", "model", "model", "model", "method", "method", "scores", "drift", "record", "arrays", "packed")
"""Which example the n-th folder case changes, in turn; ``FOLDERS`` and the rest of them."""
ORDER = (*FOLDERS, "features", "checkpoint", "weights")
MOST_FAILURES = 200  # that are written down in words
Portion = tuple[str, int, int, int]
"""Kind, seed, first and last case."""


class Worker:
    """All that cases need, made once in each process."""

    def __init__(self, samples: Path) -> None:
        torch.set_num_threads(1)
        self.scratch = Path(tempfile.mkdtemp(prefix="abnn-fuzz.", dir=scratch_root()))
        self.folder = self.scratch / "case"
        self.subjects = open_samples(samples)
        warm_up()
        self.expected = {}
        for name, subject in self.subjects.items():
            write_files(self.folder, subject.files)
            self.expected[name] = subject.read(self.folder)
        self.stack = contextlib.ExitStack()
        self.client = self.stack.enter_context(running(samples / "model"))
        self.stack.callback(shutil.rmtree, self.scratch, True)

    def case(self, kind: str, seed: int, number: int) -> str:
        """Run one case and return what came of it."""
        rng = generator(kind, seed, number)
        if kind == "images":
            return run_picture(rng, self.folder)
        if kind == "requests":
            return run_request(rng, self.client, self.folder)
        name = ORDER[number % len(ORDER)]
        return f"{name}: {run_files(rng, self.subjects[name], self.expected[name], self.folder)}"


_WORKER: Worker | None = None


def _begin(samples: str, quiet: bool) -> None:
    global _WORKER
    _WORKER = Worker(Path(samples))
    bound_memory()
    if quiet:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # decoders in C complain there about every picture


def _run(portion: Portion) -> tuple[Portion, dict[str, int], list[str], float, float]:
    assert _WORKER is not None
    kind, seed, first, last = portion
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    began, slowest = time.perf_counter(), 0.0
    for number in range(first, last):
        started = time.process_time()
        try:
            outcomes[_WORKER.case(kind, seed, number)] += 1
        except Failure as failure:
            outcomes["failed"] += 1
            failures.append(f"{kind} {number}: {failure}"[:1500])
        except BaseException as error:  # of the campaign itself: it is told, and the others are run
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            outcomes["failed"] += 1
            failures.append(f"{kind} {number}, outside of the case: {traceback.format_exc()}"[:1500])
        slowest = max(slowest, time.process_time() - started)
    return portion, dict(outcomes), failures, time.perf_counter() - began, slowest


def run(counts: dict[str, int], seed: int, processes: int, output: Path, quiet: bool = True) -> dict[str, Any]:
    """Run what is missing of a campaign and return its record."""
    record = _read(output, seed)
    samples = make_samples(Path(tempfile.mkdtemp(prefix="abnn-samples.")) / "samples")
    try:
        todo = [each for each in _portions(counts, seed) if f"{each[0]} {each[2]}" not in record["done"]]
        with _results(todo, samples, processes, quiet) as results:
            for (kind, _, first, last), outcomes, failures, seconds, slowest in results:
                record["done"][f"{kind} {first}"] = last
                total = Counter(record["outcomes"].get(kind, {}))
                total.update(outcomes)
                record["outcomes"][kind] = dict(sorted(total.items()))
                record["cases"][kind] = sum(total.values())
                record["failures"] = [*record["failures"], *failures][:MOST_FAILURES]
                record["seconds"] = round(record["seconds"] + seconds, 1)
                record["slowest_case"] = max(record["slowest_case"], round(slowest, 2))
                write_json(output, record)
    finally:
        shutil.rmtree(samples.parent, ignore_errors=True)
    return record


@contextlib.contextmanager
def _results(todo: list[Portion], samples: Path, processes: int, quiet: bool) -> Iterator[Iterator[Any]]:
    """Yield what portions gave; one process needs no other."""
    if processes == 1:
        _begin(str(samples), quiet)
        yield map(_run, todo)
        return
    with multiprocessing.get_context("spawn").Pool(processes, _begin, (str(samples), quiet)) as pool:
        yield pool.imap_unordered(_run, todo)


def _portions(counts: dict[str, int], seed: int) -> Iterator[Portion]:
    """Yield portions of all kinds in turn, so that a campaign that is stopped has some of each."""
    for first in range(0, max(counts.values()), PORTION):
        for kind, count in counts.items():
            if first < count:
                yield kind, seed, first, min(first + PORTION, count)


def _read(output: Path, seed: int) -> dict[str, Any]:
    """Return the record so far. A run of other code or of another seed begins anew."""
    origin = provenance()
    if output.exists():
        record = json.loads(output.read_text())
        if record["seed"] == seed and record["code"] == origin["code"]:
            return record
    empty: dict[str, Any] = {
        "cases": {},
        "outcomes": {},
        "done": {},
        "failures": [],
        "seconds": 0.0,
        "slowest_case": 0.0,
    }
    return {"seed": seed, **origin, **empty}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--output", type=Path, default=Path("results/hold/fuzz.json"))
    parser.add_argument("--case", nargs=2, metavar=("KIND", "NUMBER"), help="run one case alone")
    options = parser.parse_args()
    if options.case:
        with tempfile.TemporaryDirectory() as folder:
            _begin(str(make_samples(Path(folder) / "samples")), quiet=False)
            assert _WORKER is not None
            print(_WORKER.case(options.case[0], options.seed, int(options.case[1])))
        return
    counts = {"folders": options.folders, "requests": options.requests, "images": options.images}
    record = run(counts, options.seed, options.processes, options.output)
    print(json.dumps({name: record[name] for name in ("cases", "outcomes", "seconds", "slowest_case")}, indent=2))
    for failure in record["failures"][:20]:
        print(failure)
    raise SystemExit(1 if record["failures"] else 0)


if __name__ == "__main__":
    main()
