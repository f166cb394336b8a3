"""A job: its plan, its workers, and what it came to. The driver only schedules; workers read, score and write.

OUTPUT/
  part-0000000.parquet ...   the results of each shard, complete or absent; the table is all of them together
  _plan.parquet              which inputs each shard has
  _job.json                  what was asked for, sealed; a start with the same question goes on, another one is refused
  _summary.json              how many of what, and the drift monitor over all parts; written when nothing is left to do

Workers are processes of this machine, or run on a Ray cluster, where Ray Data hands out numbers of shards. Both start workers anew and try
again where one died. Ray Data does not write the results: its own writers name files by attempt, so that a task that dies after writing and
runs again leaves rows twice. Here a shard has one name, its content depends on nothing but the shard, and a rename puts it there. So each
input is in the table exactly once, whatever is killed.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout

from abnn._version import __version__
from abnn.batch.engine import run_on_ray
from abnn.batch.plan import list_inputs, read_counts, write_plan
from abnn.batch.processes import run_processes
from abnn.batch.reading import choose_column
from abnn.batch.worker import PLAN, ScoreConfig, Work, part_path, read_notes
from abnn.errors import FileFormatError, InputError, explain
from abnn.export.artefact import is_exported
from abnn.files import check_writable, read_json, seal, write_json
from abnn.store.saved import describe, fingerprint
from abnn.train.watch import progress_bar
from abnn.triage.drift import DriftMonitor, merge

FORMAT, VERSION = "abnn-score", 1
JOB, SUMMARY = "_job.json", "_summary.json"
MERGED_AT_ONCE = 1000  # parts whose drift monitors are held in memory
ANEW = "Choose another folder, or delete it to start anew."
DEFAULTS = ScoreConfig()


def score(
    model: str | Path,
    source: str | Path,
    output: str | Path,
    config: ScoreConfig = DEFAULTS,
    progress: bool = True,
) -> dict[str, Any]:
    """Score every input of ``source`` with the model of a folder into the folder ``output`` and return the summary.

    source  a folder of images or of Parquet files, a Parquet file, or a text file with the name of an image in each line
    model   a folder that ``model.save`` or ``model.export`` wrote
    output  Parquet files with id, what the model says, score, verdict, error and model, see docs/scale.md. If the folder holds a part
            of the same job, it goes on from there; the folder of another job is refused

    Inputs that cannot be read have the reason as ``error`` and no score. All machines of a cluster must see the same files.
    """
    output = Path(output)
    check_writable("OUTPUT", output, folder=True)
    output.mkdir(parents=True, exist_ok=True)
    with _locked(output):
        work = _prepare(Path(model), str(source), output, config)
        counts = read_counts(output / PLAN)
        missing = [number for number in range(len(counts)) if not part_path(output, number).exists()]
        with progress_bar(disable=not progress) as bar:
            done = sum(counts) - sum(counts[number] for number in missing)
            task = bar.add_task("scoring", total=sum(counts), completed=done, status="")
            if missing:
                (output / SUMMARY).unlink(missing_ok=True)
                with closing(run_workers(work, missing, config.ray, config.workers)) as numbers:
                    for number in numbers:
                        bar.advance(task, counts[number])
        summary = _summarise(output, work, counts)
        if missing or not (output / SUMMARY).exists():
            for stray in output.glob(".part-*"):  # of workers that were killed while they wrote
                stray.unlink(missing_ok=True)
            write_json(output / SUMMARY, summary)
    return summary


def run_workers(work: Work, shards: list[int], address: str | None, workers: int | None) -> Generator[int, None, None]:
    """Yield numbers of shards as they are done, in any order."""
    return run_processes(work, shards, workers) if address is None else run_on_ray(work, shards, address, workers)


def _prepare(model: Path, source: str, output: Path, config: ScoreConfig) -> Work:
    """Return what workers need. Writes plan and description of a new job; an old one must be the same."""
    describe(model)  # a folder of another kind is refused before anything is read
    if is_exported(model) and (config.backbone or config.weights or config.device == "cuda"):
        actual, fix = f"{model}, which was exported", "Leave out --backbone, --weights and --device."
        raise InputError(explain("MODEL", actual, "a model that holds its network, on the CPU", fix))
    asked: dict[str, Any] = {
        name: getattr(config, name)
        for name in ("backbone", "weights", "tokenizer", "size", "batch_size", "draws", "seed", "id_column")
    }
    for name in ("weights", "tokenizer"):
        asked[name] = None if asked[name] is None else str(Path(asked[name]).absolute())
    asked |= {"input": os.path.abspath(source), "fingerprint": fingerprint(model, config.backbone)}
    place = output / JOB
    if not place.exists():
        others = [each.name for each in output.iterdir() if not each.name.startswith(".") and each.name != PLAN]
        if others:  # not those of a job that was stopped while it made its plan
            actual = f"{output}, which holds {others[0]} and is no folder of a job"
            raise InputError(explain("OUTPUT", actual, "a new folder, or one that abnn score wrote to"))
        _plan(source, output, config, asked)
    saved = _read_job(place)
    other = _differences(saved, asked, config)
    if other and next(output.glob("part-*"), None) is None:  # nothing is lost where the first try failed
        _plan(source, output, config, asked)
        saved, other = _read_job(place), []
    if other:
        told = ", ".join(f"{name} {saved.get(name)!r}" for name in other)
        raise InputError(explain("OUTPUT", f"{output}, where a job with {told} began", "the same job again", ANEW))
    if hashlib.sha256((output / PLAN).read_bytes()).hexdigest() != saved["plan"]:
        raise FileFormatError(f"{output / PLAN} is not the plan that the job began with. {ANEW}")
    own = {name: saved[name] for name in asked if name != "input"}
    paths = {"model": str(model.absolute()), "output": str(output.absolute()), "root": saved["root"]}
    return Work(**own, **paths, column=saved["column"], device=config.device)


def _differences(saved: dict[str, Any], asked: dict[str, Any], config: ScoreConfig) -> list[str]:
    """Return the names of settings in which a job differs from the one that began."""
    other = [name for name, value in asked.items() if saved.get(name) != value]
    return [*other, "column"] if config.column not in (None, saved["column"]) else other


def _plan(source: str, output: Path, config: ScoreConfig, asked: dict[str, Any]) -> None:
    listing, column = list_inputs(source), None
    if listing.kind == "parquet":
        first = os.path.join(os.fsencode(listing.root), next(iter(listing.names)))
        column = choose_column(first, config.column, config.tokenizer is not None)
        listing = list_inputs(source)
    elif config.tokenizer is not None:
        raise InputError(explain("--tokenizer", f"one, for {source}", "Parquet files with a column of text"))
    scratch = output / f".{PLAN}"
    write_plan(scratch, listing, config.size)
    digest = hashlib.sha256(scratch.read_bytes()).hexdigest()
    os.replace(scratch, output / PLAN)
    about = {"format": FORMAT, "version": VERSION, "abnn": __version__, "root": listing.root, "column": column}
    write_json(output / JOB, seal({**asked, **about, "plan": digest}))


def _read_job(path: Path) -> dict[str, Any]:
    saved = read_json(path)
    if not isinstance(saved, dict) or saved.get("format") != FORMAT or saved.get("version") != VERSION:
        raise FileFormatError(f"{path} is no description of a job in format {VERSION}. {ANEW}")
    if saved.get("digest") != seal(saved)["digest"]:
        raise FileFormatError(f"{path} was changed since it was written. {ANEW}")
    return saved


@contextmanager
def _locked(output: Path) -> Iterator[None]:
    """Keep others from working on the same folder; the lock goes with the process that holds it, however that ends."""
    try:
        with FileLock(output / ".lock", timeout=0):
            yield
    except Timeout:
        actual = f"{output}, which another process works on"
        raise InputError(explain("OUTPUT", actual, "a folder of its own")) from None


def _summarise(output: Path, work: Work, counts: list[int]) -> dict[str, Any]:
    """Return how many inputs have which verdict, and the drift over all; a part that is damaged is an error that names it."""
    verdicts, errors, monitors = Counter[str](), 0, list[DriftMonitor]()
    for number, count in enumerate(counts):
        path = part_path(output, number)
        try:
            notes, rows = read_notes(path)
            if rows != count or notes["fingerprint"] != work.fingerprint:
                raise ValueError(f"{rows} rows of {count}, model {notes['fingerprint'][:16]}")
            monitors += [] if notes["drift"] is None else [DriftMonitor.from_dict(notes["drift"])]
            verdicts.update(notes["verdicts"])
            errors += notes["errors"]
        except (OSError, KeyError, ValueError, TypeError, pa.ArrowException) as error:
            fix = "Delete this file and start the job again."
            raise FileFormatError(f"{path} is not a part of this job ({error}). {fix}") from None
        if len(monitors) >= MERGED_AT_ONCE:
            monitors = [merge(monitors)]
    return {
        "inputs": sum(counts),
        "errors": errors,
        "verdicts": dict(sorted(verdicts.items())),
        "model": work.fingerprint,
        "drift": merge(monitors).to_dict() if monitors else None,
    }
