"""The steps of ``abnn sweep``. Each trial is a fit of its own that leaves one JSON file, complete or absent.

Ray Tune runs the trials that have no file yet, so a sweep that was stopped goes on with those, and a fit that was stopped with its
own checkpoint. Trials are judged on the held-out images, which no fit has seen.
"""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from abnn.batch.engine import connected
from abnn.batch.processes import cores
from abnn.cli._common import say
from abnn.cli.fit import FitRequest
from abnn.cli.steps import fitting
from abnn.cli.sweep import SweepRequest
from abnn.errors import AbnnError, InputError, explain
from abnn.files import check_writable, read_json, seal, write_json, write_text
from abnn.metrics import auroc
from abnn.triage.calibrate import gather

SWEPT: dict[str, Callable[[str], Any]] = {"lr": float, "epochs": int, "last": int}
RUNNING = ("ray", "workers", "device", "quiet")  # what does not change a result
JUDGED = ("changed", "far", "errors")


def run(request: SweepRequest) -> None:
    """Run all trials that are missing, then write and show the table."""
    check_writable("--output", request.output, folder=True)
    trials = make_trials(request)
    for trial in trials[:1]:
        fitting.check(trial)
    missing = [trial for trial in trials if not _has_result(request, trial)]
    say(f"{len(trials)} trials, {len(trials) - len(missing)} of them done already")
    if missing:
        _run_missing(request, missing)
    rows = [read_json(_place(trial)) for trial in trials if _has_result(request, trial)]
    rows.sort(key=lambda row: -row["mean"])
    _write_table(request.output / "sweep.csv", rows)
    _show(rows)
    if failed := len(trials) - len(rows):
        raise AbnnError(f"{failed} of {len(trials)} trials failed; start the same command again to try them once more.")
    say("Chosen on these held-out images: evaluate the one you take on others.")


def make_trials(request: SweepRequest) -> list[FitRequest]:
    """Return one request for each combination of settings; raises an error for a list that is none."""
    choices: dict[str, list[Any]] = {}
    for name, kind in SWEPT.items():
        text = getattr(request, name)
        try:
            choices[name] = [None] if text is None else [kind(each) for each in text.split(",")]
        except ValueError:
            raise InputError(explain(f"--{name}", repr(text), "numbers with commas between them")) from None
    known = {field.name for field in fields(FitRequest)} - SWEPT.keys() - {"output"}
    same = {name: value for name, value in vars(request).items() if name in known}
    same |= {"quiet": True, "report": False, "accept_loss": True}
    combined = itertools.product(*choices.values())
    return [
        FitRequest(**same, **dict(zip(choices, values)), output=request.output / "trials" / str(number))
        for number, values in enumerate(combined)
    ]


def run_trial(trial: FitRequest, identity: dict[str, Any]) -> None:
    """Fit with the settings of one trial, and write how it did on held-out images."""
    started = time.perf_counter()
    checkpoint = trial.output.with_suffix(".safetensors")
    settings = {name: getattr(trial, name) for name in SWEPT}
    job = fitting.prepare(FitRequest(**{**vars(trial), "checkpoint": checkpoint}))
    with contextlib.redirect_stdout(io.StringIO()):
        before = fitting.measure(job, job.network)
        model = fitting.fit_attachments(job, job.network, before)
    found = gather(model, fitting.make_loader(job.images.held_out), outliers=job.outliers)
    right = found.predicted == found.labels
    scores = {
        "changed": _auroc(found.good, found.mild),
        "far": _auroc(found.good, found.severe),
        "errors": _auroc(found.good[right], found.good[~right]),
    }
    accuracies = {"accuracy": float(right.mean()), "accuracy_before": before.held_out.float().mean().item()}
    mean = float(np.mean([scores[name] for name in JUDGED if scores[name] is not None]))
    seconds = round(time.perf_counter() - started, 1)
    row = {**settings, **accuracies, **scores, "mean": mean, "seconds": seconds, "sweep": identity}
    write_json(trial.output.with_suffix(".json"), seal(row))
    checkpoint.unlink(missing_ok=True)


def _auroc(low: np.ndarray, high: np.ndarray) -> float | None:
    return auroc(low, high) if len(low) and len(high) else None


def _place(trial: FitRequest) -> Path:
    return trial.output.with_suffix(".json")


def _identity(request: SweepRequest) -> dict[str, Any]:
    """Return what tells this sweep from others."""
    values = {name: value for name, value in asdict(request).items() if name not in (*RUNNING, "output")}
    return {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in values.items()}


def _has_result(request: SweepRequest, trial: FitRequest) -> bool:
    """Return whether the trial has its file; one of another sweep is an error."""
    place = _place(trial)
    if not place.exists():
        return False
    row = read_json(place)
    whole = isinstance(row, dict) and row.get("digest") == seal(row)["digest"]
    if not whole or row["sweep"] != _identity(request):
        actual = f"{request.output}, where {place.name} is {'of another sweep' if whole else 'damaged'}"
        raise InputError(explain("--output", actual, "a new folder, or that of the same sweep"))
    return True


def _run_missing(request: SweepRequest, missing: list[FitRequest]) -> None:
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    identity, here = _identity(request), os.getcwd()

    def trainable(config: dict[str, Any]) -> None:
        os.chdir(here)  # Tune has a folder for each trial, and paths of the request start at ours
        run_trial(missing[config["number"]], identity)

    with connected(request.ray, request.workers) as ray:
        from ray import tune

        gpus = 0 if request.device == "cpu" else int(ray.cluster_resources().get("GPU", 0))
        needs = {"cpu": 1, "gpu": 1 if gpus else 0}
        storage = tune.RunConfig(name="tune", storage_path=str(request.output.absolute()), verbose=0)
        tuner = tune.Tuner(
            tune.with_resources(trainable, needs),
            param_space={"number": tune.grid_search(list(range(len(missing))))},
            tune_config=tune.TuneConfig(max_concurrent_trials=request.workers or gpus or cores()),
            run_config=storage,
        )
        for result in tuner.fit():
            if result.error is not None:
                say(f"abnn: a trial failed: {str(result.error).strip().splitlines()[-1]}", warning=True)


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    columns = [*SWEPT, "accuracy_before", "accuracy", *JUDGED, "mean", "seconds"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, buffer.getvalue())


def _show(rows: list[dict[str, Any]]) -> None:
    table = Table(box=None)
    for name in (*SWEPT, "accuracy", *(f"AUROC {each}" for each in JUDGED), "mean"):
        table.add_column(name, justify="right")
    for row in rows:
        settings = ["-" if row[name] is None else f"{row[name]:g}" for name in SWEPT]
        shares = ["-" if row[name] is None else f"{100 * row[name]:.2f} %" for name in ("accuracy", *JUDGED, "mean")]
        table.add_row(*settings, *shares)
    Console(width=120).print(table)
