"""A file system that fails or stops at the n-th operation: ``python -m tests.fuzz.crash`` tries every n of every job.

A job writes files. It is run in a forked process in which the n-th write, rename, flush, ... either raises OSError (the disk is
full, from then on or once), ends the process at once, or ends it after half of the bytes. What the job replaces must then be the
old one or the new one, whole; and the job done again must end as if it had never been disturbed, to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import abnn
from abnn import files
from abnn.cli.evaluate import evaluate
from abnn.evaluate import resume
from abnn.evaluate.provenance import provenance
from abnn.evaluate.records import find_records
from abnn.store.folder import fingerprint
from abnn.triage.drift import DriftMonitor
from tests.fuzz.subjects import CLASSES, DRAWS, RECIPE, inputs, loader, make_samples

MODES = ("fails", "fails once", "stops", "stops half-way")
OPERATIONS = ("open", "replace", "rename", "fsync", "mkdir", "unlink", "remove", "rmdir", "chmod")
STOPPED = 77


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

    def fdopen(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(*arguments: Any, **options: Any) -> Any:
            file = real(*arguments, **options)
            return _FaultyFile(self, file) if "w" in (arguments[1] if len(arguments) > 1 else "r") else file

        return opened

    def exchange(self, real: Callable[..., bool]) -> Callable[..., bool]:
        return self.wrap("exchange", real)

    @contextlib.contextmanager
    def in_place(self) -> Iterator[FaultyFiles]:
        with contextlib.ExitStack() as stack:
            for name in OPERATIONS:
                stack.enter_context(mock.patch.object(os, name, self.wrap(name, getattr(os, name))))
            stack.enter_context(mock.patch.object(os, "fdopen", self.fdopen(os.fdopen)))
            stack.enter_context(mock.patch.object(files, "_exchange", self.exchange(files._exchange)))
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

    prepare  puts into an empty folder what is there before
    work     done, or done again
    state    what counts, to the bit; called before, after and in between, and raises where something is damaged
    """

    name: str
    prepare: Callable[[Path], None]
    work: Callable[[Path], None]
    state: Callable[[Path], Any]


def _network() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return abnn.build_backbone("paper-resnet", CLASSES, 1, **RECIPE).eval()


def _nothing(folder: Path) -> None:
    folder.mkdir()


def _fit(folder: Path) -> None:
    model = abnn.attach(_network(), inputs()[0][:1], draws=DRAWS)
    config = abnn.FitConfig(checkpoint_every=1)
    abnn.fit(model, loader(48), epochs=2, progress=False, checkpoint=folder / "run.safetensors", config=config)
    model.save(folder / "model", backbone=True)


def _fit_state(folder: Path) -> Any:
    """A checkpoint is absent or can be read; the model is absent or whole."""
    if (folder / "run.safetensors").exists():
        files.read_tree(folder / "run.safetensors")
    return _model_state(folder) if (folder / "model").exists() else None


def _model_state(folder: Path) -> Any:
    model = abnn.load(folder / "model")
    parameters = {name: each.detach().numpy().tobytes() for name, each in model.attachment_parameters()}
    triage = None if model.triage is None else json.dumps(model.triage.to_dict(), sort_keys=True)
    text = repr((sorted(parameters.items()), fingerprint(model.backbone), triage, model.extra))
    return hashlib.sha256(text.encode()).hexdigest()


def _sample(folder: Path) -> Callable[[Path], None]:
    return lambda into: shutil.copytree(folder / "model", into / "model") and None


def _save(folder: Path) -> None:
    model = abnn.attach(_network(), inputs()[0][:1], draws=DRAWS, seed=5)
    model.save(folder / "model", backbone=True, extra={"new": True})


def _calibrate(folder: Path) -> None:
    model = abnn.load(folder / "model")
    model.triage = abnn.Triage.calibrate(model, loader(96), draws=DRAWS + 1)
    model.save(folder / "model", backbone=True)


def _evaluate(samples: Path) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        with mock.patch.object(resume, "BATCHES_PER_PART", 2):
            evaluate(
                checkpoint=samples / "model",
                id=[f"own={samples / 'arrays' / 'data.npz'}"],
                full=[f"other={samples / 'packed' / 'data.npz'}"],
                output=folder / "out",
                batch_size=4,
                device="cpu",
                report=False,
                quiet=True,
            )

    return work


def _evaluate_state(folder: Path) -> Any:
    if not (folder / "out" / "records").is_dir():
        return None
    records = find_records(folder / "out" / "records")
    return [(each.arrays_sha256, each.numbers, len(each.evaluation().sets)) for each in records] or None


def _drift(folder: Path) -> None:
    monitor = DriftMonitor.load(folder / "drift.json")
    if monitor.seen == 50:
        monitor.update(np.linspace(0, 1, 20))
    monitor.save(folder / "drift.json")


def _drift_state(folder: Path) -> Any:
    return json.dumps(DriftMonitor.load(folder / "drift.json").to_dict())


def jobs(samples: Path) -> dict[str, Job]:
    """Return all jobs by name; ``samples`` as :func:`make_samples` made them."""

    def drift(folder: Path) -> None:
        shutil.copytree(samples / "drift", folder, dirs_exist_ok=True)

    every = (
        Job("fit", _nothing, _fit, _fit_state),
        Job("save", lambda folder: _nothing(folder) or _sample(samples)(folder), _save, _model_state),
        Job("calibrate", lambda folder: _nothing(folder) or _sample(samples)(folder), _calibrate, _model_state),
        Job("evaluate", _nothing, _evaluate(samples), _evaluate_state),
        Job("drift", drift, _drift, _drift_state),
    )
    return {job.name: job for job in every}


# -- one point --------------------------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run in a forked process; return its exit status and what it returned, as JSON can hold it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
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
    """Let a job be struck at one operation and recover; return what it left, "old", "new" or an error in words."""
    folder = _empty(scratch)
    job.prepare(folder)

    def struck() -> None:
        with FaultyFiles(number, mode).in_place():
            job.work(folder)

    status, answer = in_child(struck)
    if status not in (0, 1, STOPPED) or (status == STOPPED) != mode.startswith("stops"):
        return f"error: exit status {status}, {answer}"
    if status == 1 and answer["error"] not in ("OSError", "FileFormatError", "InputError"):
        return f"error: {answer}"
    status, left = in_child(lambda: job.state(folder))
    if status != 0 or left not in (before, after):
        return f"error: neither the old state nor the new one, {left!r:.300}"

    def again() -> Any:
        job.work(folder)
        return job.state(folder)

    status, end = in_child(again)
    if status != 0 or end != after:
        return f"error: done again it ends otherwise, {end!r:.300}"
    return "old" if left == before else "new"


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("results/hold/crash.json"))
    parser.add_argument("--jobs", nargs="*", default=["drift", "save", "calibrate", "evaluate", "fit"])
    parser.add_argument("--modes", nargs="*", default=list(MODES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    record: dict[str, Any] = {**provenance(), "jobs": {}, "points": 0, "recovered": 0, "errors": []}
    with tempfile.TemporaryDirectory() as root:
        known = jobs(make_samples(Path(root) / "samples"))
        for name in options.jobs:
            operations, before, after = measure(known[name], Path(root) / "work")
            outcomes: Counter[str] = Counter()
            for mode in options.modes:
                for number in range(1, operations + 1):
                    outcome = try_point(known[name], number, mode, before, after, Path(root) / "work")
                    outcomes[f"{mode}: {outcome.partition(':')[0]}"] += 1
                    record["points"] += 1
                    record["recovered"] += not outcome.startswith("error")
                    if outcome.startswith("error"):
                        record["errors"].append(f"{name}, operation {number} {mode}: {outcome}"[:800])
                record["jobs"][name] = {"operations": operations, "outcomes": dict(sorted(outcomes.items()))}
                record["seconds"] = round(time.perf_counter() - began, 1)
                files.write_json(options.output, record)
    print(json.dumps({key: record[key] for key in ("points", "recovered", "jobs", "errors", "seconds")}, indent=2))
    raise SystemExit(1 if record["errors"] else 0)


if __name__ == "__main__":
    main()
