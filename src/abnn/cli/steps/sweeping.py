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
    fitting.check(trials[0])
    missing = [trial for trial in trials if not _read_results(request, [trial])]
    say(f"{len(trials)} trials, {len(trials) - len(missing)} of them done already")
    if missing:
        _run_missing(request, missing)
    rows = sorted(_read_results(request, trials), key=lambda row: -row["mean"])
    _write_table(request.output / "sweep.csv", rows)
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
    pairs = ((found.good, found.mild), (found.good, found.severe), (found.good[right], found.good[~right]))
    scores = {name: auroc(*pair) if all(map(len, pair)) else None for name, pair in zip(JUDGED, pairs)}
    accuracies = {"accuracy": float(right.mean()), "accuracy_before": before.held_out.float().mean().item()}
    mean = float(np.mean([score for score in scores.values() if score is not None]))
    seconds = round(time.perf_counter() - started, 1)
    row = {**settings, **accuracies, **scores, "mean": mean, "seconds": seconds, "sweep": identity}
    write_json(trial.output.with_suffix(".json"), seal(row))
    checkpoint.unlink(missing_ok=True)


def _identity(request: SweepRequest) -> dict[str, Any]:
    """Return what tells this sweep from others."""
    values = {name: value for name, value in asdict(request).items() if name not in (*RUNNING, "output")}
    return {name: str(value.absolute()) if isinstance(value, Path) else value for name, value in values.items()}


def _read_results(request: SweepRequest, trials: list[FitRequest]) -> list[dict[str, Any]]:
    """Return what is in the files of trials that have theirs; one of another sweep is an error."""
    rows = []
    for place in (trial.output.with_suffix(".json") for trial in trials):
        if place.exists():
            rows.append(row := read_json(place))
            whole = isinstance(row, dict) and row.get("digest") == seal(row)["digest"]
            if not whole or row["sweep"] != _identity(request):
                actual = f"{request.output}, where {place.name} is {'of another sweep' if whole else 'damaged'}"
                raise InputError(explain("--output", actual, "a new folder, or that of the same sweep"))
    return rows


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
        tuner = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1, "gpu": min(1, gpus)}),
            param_space={"number": tune.grid_search(list(range(len(missing))))},
            tune_config=tune.TuneConfig(max_concurrent_trials=request.workers or gpus or cores()),
            run_config=tune.RunConfig(name="tune", storage_path=str(request.output.absolute()), verbose=0),
        )
        for result in tuner.fit():
            if result.error is not None:
                say(f"abnn: a trial failed: {str(result.error).strip().splitlines()[-1]}", warning=True)


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write all results as CSV, and show what a reader wants to know first."""
    columns = [*SWEPT, "accuracy_before", "accuracy", *JUDGED, "mean", "seconds"]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, buffer.getvalue())
    table = Table(box=None)
    for name in (*SWEPT, "accuracy", *(f"AUROC {each}" for each in JUDGED), "mean"):
        table.add_column(name, justify="right")
    for row in rows:
        settings = ["-" if row[name] is None else f"{row[name]:g}" for name in SWEPT]
        shares = ["-" if row[name] is None else f"{100 * row[name]:.2f} %" for name in ("accuracy", *JUDGED, "mean")]
        table.add_row(*settings, *shares)
    Console(width=120).print(table)
