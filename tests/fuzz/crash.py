"""A file system that fails or stops at the n-th operation: ``python -m tests.fuzz.crash --jobs 16 --into results/hold/crash.json``.

A job writes files; two of them are the commands ``abnn fit`` and ``abnn evaluate``, from the first file to the last. It is run
in a forked process in which the n-th write, rename, flush, ... either raises OSError (the disk is full, from then on or once),
ends the process at once, or ends it after half of the bytes. Each thing that the job replaces must then be the old one or the new
one, whole; and the job done again must end as if it had never been disturbed, to the bit. Every n of every job is tried.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import errno
import hashlib
import importlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

import abnn
from abnn import cli, files
from abnn.evaluate import resume
from abnn.evaluate.provenance import provenance
from abnn.evaluate.records import find_records
from abnn.store.folder import fingerprint
from abnn.triage.drift import DriftMonitor
from tests.fuzz.campaign import SECONDS, in_processes, on_one_core
from tests.fuzz.subjects import CLASSES, DRAWS, RECIPE, inputs, loader, make_samples
from tests.fuzz.watch import scratch_root

NAMES = ("fit", "evaluate", "save", "calibrate", "drift")
MODES = ("fails", "fails once", "stops", "stops half-way")
OPERATIONS = ("open", "replace", "rename", "fsync", "mkdir", "unlink", "remove", "rmdir", "chmod")
STOPPED = 77
ERRORS = ("OSError", "FileFormatError", "InputError")
PATIENCE = 120  # seconds after which a job counts as hung


class FaultyFiles:
    """Counts what changes the file system, and lets the n-th of these operations fail; n = 0: none."""

    def __init__(self, number: int = 0, mode: str = "fails") -> None:
        self.number, self.mode, self.count = number, mode, 0

    def strikes(self) -> bool:
        self.count += 1
        return self.count == self.number or (self.mode == "fails" and 0 < self.number < self.count)

    def strike(self) -> None:
        if self.mode.startswith("stops"):
            os._exit(STOPPED)
        raise OSError(errno.ENOSPC, "No space left on device")

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            reads = name == "open" and not (arguments[1] if len(arguments) > 1 else 0) & (os.O_WRONLY | os.O_RDWR)
            if not reads and self.strikes():
                self.strike()
            return real(*arguments, **options)

        return operation

    def wrap_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Of os.fdopen and open(): the file is opened by one operation, unless it is open already, and written by others."""

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            writes = any(sign in mode for sign in "wax+") and file != os.devnull
            if writes and not isinstance(file, int) and self.strikes():
                self.strike()
            content = real(file, mode, *arguments, **options)
            return _FaultyFile(self, content) if writes else content

        return opened

    @contextlib.contextmanager
    def in_place(self) -> Iterator[FaultyFiles]:
        with contextlib.ExitStack() as stack:
            for name in OPERATIONS:
                stack.enter_context(mock.patch.object(os, name, self.wrap(name, getattr(os, name))))
            for module, name in ((os, "fdopen"), (io, "open"), (builtins, "open")):
                stack.enter_context(mock.patch.object(module, name, self.wrap_open(getattr(module, name))))
            stack.enter_context(mock.patch.object(files, "_exchange", self.wrap("exchange", files._exchange)))
            yield self


class _FaultyFile:
    """A file whose writing may end half-way."""

    def __init__(self, faults: FaultyFiles, file: Any) -> None:
        self.faults, self.file = faults, file

    def write(self, content: bytes) -> int:
        if self.faults.strikes():
            if self.faults.mode in ("stops half-way", "fails once"):
                self.file.write(content[: len(content) // 2])
                self.file.flush()
            self.faults.strike()
        return self.file.write(content)

    def __enter__(self) -> Any:
        self.file.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self.file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


# -- jobs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Something that writes into a folder.

    prepare  puts into a new folder what is there before
    work     done, or done again
    state    what counts, to the bit, part by part; called before, after and in between, and raises where one is damaged
    """

    name: str
    prepare: Callable[[Path], Any]
    work: Callable[[Path], None]
    state: Callable[[Path], dict[str, Any]]


def network() -> Any:
    """Return the network of all jobs; ``abnn fit`` calls it by name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return abnn.build_backbone("paper-resnet", CLASSES, 1, **RECIPE).eval()


def _command(*arguments: object) -> None:
    """Run ``abnn ARGUMENTS``; a status other than 0 is a SystemExit."""
    with mock.patch.object(sys, "argv", ["abnn", *map(str, arguments)]):
        try:
            cli.main()
        except SystemExit as end:
            if end.code not in (0, None):
                raise


def _model(folder: Path) -> str | None:
    """Return the digest of what a saved model holds; None where there is none."""
    if not folder.exists():
        return None
    model = abnn.load(folder, network())
    parameters = {name: each.detach().numpy().tobytes() for name, each in model.attachment_parameters()}
    triage = None if model.triage is None else json.dumps(model.triage.to_dict(), sort_keys=True)
    text = repr((sorted(parameters.items()), fingerprint(model.backbone), triage, model.extra))
    return hashlib.sha256(text.encode()).hexdigest()


def _page(path: Path) -> str | None:
    """Return that a page is whole; its text holds the time."""
    if not path.exists():
        return None
    assert path.read_text().rstrip().endswith("</html>")
    return "whole"


def _fit(samples: Path, pages: bool = True, seed: int = 1) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        _command(
            *("fit", "--backbone", f"{__name__}:network", "--data", samples / "pictures", "--output", folder / "out"),
            *("--checkpoint", folder / "run.safetensors", "--train-backbone", "--backbone-epochs", 2, "--epochs", 5),
            *("--batch-size", 16, "--draws", DRAWS, "--views", 1, "--held-out", 0.4, "--noticed", 0.2, "--seed", seed),
            *("--accelerator", "cpu", "--accept-loss", "--quiet", "--report" if pages else "--no-report"),
        )

    return work


def _fit_state(folder: Path) -> dict[str, Any]:
    for checkpoint in folder.glob("*.safetensors"):
        files.read_tree(checkpoint)  # absent, or as it was written
    return {"model": _model(folder / "out" / "model"), "page": _page(folder / "out" / "report.html")}


def _save(folder: Path) -> None:
    model = abnn.attach(network(), inputs()[0][:1], draws=DRAWS, seed=5)
    model.save(folder / "model", backbone=True, extra={"new": True})


def _calibrate(folder: Path) -> None:
    model = abnn.load(folder / "model")
    model.triage = abnn.Triage.calibrate(model, loader(96), draws=DRAWS + 1)
    model.save(folder / "model", backbone=True)


def _evaluate(samples: Path, pages: bool) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        with mock.patch.object(resume, "BATCHES_PER_PART", 2):
            _command(
                *("evaluate", samples / "model", "--id", f"own={samples / 'arrays' / 'data.npz'}"),
                *("--full", f"other={samples / 'packed' / 'data.npz'}", "--output", folder / "out"),
                *("--batch-size", 4, "--device", "cpu", "--quiet", "--report" if pages else "--no-report"),
            )

    return work


def _evaluate_state(folder: Path) -> dict[str, Any]:
    place = folder / "out" / "records"
    records = find_records(place) if place.is_dir() else []
    numbers = [(each.arrays_sha256, each.numbers, len(each.evaluation().sets)) for each in records]
    return {"records": json.dumps(numbers) if numbers else None, "page": _page(folder / "out" / "report.html")}


def _drift(folder: Path) -> None:
    monitor = DriftMonitor.load(folder / "drift.json")
    if monitor.seen == 50:
        monitor.update(np.linspace(0, 1, 20))
    monitor.save(folder / "drift.json")


def _copy(source: Path, name: str = ".") -> Callable[[Path], Any]:
    return lambda folder: shutil.copytree(source, folder / name, dirs_exist_ok=True)


def jobs(samples: Path, pages: bool = True) -> dict[str, Job]:
    """Return all jobs by name; without ``pages`` commands draw none, which takes most of their time.

    samples  as :func:`make_samples` and :func:`make_fitted` made them
    """
    model, fitted = samples / "model", samples / "fitted"
    every = (
        Job("fit", _copy(fitted, "out"), _fit(samples, pages), _fit_state),
        Job("evaluate", Path.mkdir, _evaluate(samples, pages), _evaluate_state),
        Job("save", _copy(model, "model"), _save, lambda folder: {"model": _model(folder / "model")}),
        Job("calibrate", _copy(model, "model"), _calibrate, lambda folder: {"model": _model(folder / "model")}),
        Job(
            "drift", _copy(samples / "drift"), _drift, lambda folder: DriftMonitor.load(folder / "drift.json").to_dict()
        ),
    )
    return {job.name: job for job in every}


def make_fitted(samples: Path, pages: bool = True) -> Path:
    """Write pictures to fit, and the output of an earlier ``abnn fit``, beside the other samples; return their folder."""
    if (samples / "fitted").exists():
        return samples
    x, y = inputs()
    for number, (picture, label) in enumerate(zip((x[:, 0] * 255).byte().numpy(), y.tolist())):
        (samples / "pictures" / "abc"[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(samples / "pictures" / "abc"[label] / f"{number}.png")
    with tempfile.TemporaryDirectory() as folder:
        status, answer = in_child(lambda: _fit(samples, pages, seed=2)(Path(folder)))
        assert status == 0, answer
        shutil.copytree(Path(folder) / "out", samples / "fitted")
    return samples


# -- one point --------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run in a forked process; return its exit status and what it returned, as JSON can hold it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            signal.alarm(PATIENCE)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            warnings.simplefilter("ignore")
            try:
                answer, status = work(), 0
            except BaseException as error:  # noqa: BLE001, the parent is told of it
                where = traceback.format_tb(error.__traceback__)[-1]
                answer = {"error": type(error).__name__, "text": f"{error!s:.300} {where}"}
            with open(writer, "w") as file:
                json.dump(answer, file)
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text else None


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


def run(names: Sequence[str], modes: Sequence[str], processes: int, into: Path, pages: bool = True) -> dict[str, Any]:
    """Try every operation of these jobs in these modes, and return the record."""
    began, written = time.perf_counter(), 0.0
    record: dict[str, Any] = {
        **provenance(),
        "processes": processes,
        "pages": pages,
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
        files.write_json(into, record)

    with tempfile.TemporaryDirectory() as root:
        samples = make_fitted(make_samples(Path(root) / "samples"), pages)
        points = []
        for point, (operations, before, after) in in_processes(
            _run, map(Point, names), processes, _begin, samples, pages
        ):
            record["jobs"][point.job] = {"operations": operations}
            numbers = range(1, operations + 1)
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
    options = parser.parse_args()
    on_one_core()
    record = run(options.only, options.modes, options.jobs, options.into, not options.no_pages)
    print(json.dumps({key: record[key] for key in ("points", "recovered", "jobs", "errors", "seconds")}, indent=2))
    raise SystemExit(1 if record["errors"] else 0)


if __name__ == "__main__":
    main()
