"""``abnn predict``: label, probability, score and verdict for every input that is named."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from abnn.cli import _common as common
from abnn.cli._common import visible
from abnn.errors import AbnnError, FileFormatError, InputError, explain

INPUTS = "Images, folders, patterns, .npz files; - for stdin."
NOTICED, REJECTED = 10, 11
"""Exit statuses where the worst verdict is "notice" or "reject"; 0: all accepted, 2: an error."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """What a user asks ``abnn predict`` for."""

    model: common.ModelFolder
    inputs: Annotated[list[str] | None, Argument(metavar="INPUT...", help=INPUTS)] = None
    from_file: Annotated[str | None, Option(help="Names of inputs, one per line; - for stdin.")] = None
    format: Annotated[str, Option("--format", "-f", help="table, jsonl or csv.")] = "table"
    draws: common.Draws = None
    seed: common.DrawSeed = None
    batch_size: common.BatchSize = 64
    device: common.Device = "auto"
    ink: Annotated[bool, Option("--ink", help="The pictures are digits on paper; for models of such digits.")] = False
    skip_unreadable: common.SkipUnreadable = False
    exit_zero: Annotated[bool, Option("--exit-zero", help="Exit with 0 whatever the verdicts are.")] = False
    drift: Annotated[Path | None, Option(help="Watch for drift; this file keeps the state from call to call.")] = None
    backbone: common.Backbone = None
    weights: common.Weights = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress and no summary on stderr.")] = False


@common.command(PredictRequest)
def predict(request: PredictRequest) -> None:
    """Predict images and say for each: accept, notice or reject.

    Exit status: 0 all accepted, 10 something noticed, 11 something rejected, 2 an error.
    """
    from abnn.cli._inputs import list_names
    from abnn.cli._rows import make_writer
    from abnn.data.drawing import reads_drawings
    from abnn.files import check_writable

    names = list_names(request.inputs or [], request.from_file)
    writer = make_writer(request.format, sys.stdout)
    if request.drift is not None:
        check_writable("--drift", request.drift)
    model, _ = common.open_model(request.model, request.backbone, request.weights, request.device)
    monitor = _open_monitor(model, request.drift)
    already = monitor is not None and monitor.alarmed
    try:
        counts = _predict_all(request, model, names, writer, monitor)
    finally:
        if monitor is not None:
            monitor.save(request.drift)
    if not request.quiet:
        _summarise(counts, getattr(model, "triage", None) is not None)
        if counts["reject"] and not request.ink and reads_drawings(model):
            typer.echo("If a rejected picture is a digit written on paper: --ink finds the ink first.", err=True)
    if monitor is not None and monitor.alarmed:
        when = "earlier" if already else f"after {monitor.alarmed_at:,} inputs"
        evidence = f"scores are {monitor.direction} than in calibration (evidence against chance {monitor.p_value:.1e})"
        promise = "the promised shares of verdicts do not hold for such inputs"
        typer.echo(f"abnn: drift, noticed {when}: {evidence}; {promise}.", err=True)
    worst = REJECTED if counts["reject"] else NOTICED if counts["notice"] else 0
    if worst and not request.exit_zero:
        raise typer.Exit(worst)


def _predict_all(request: PredictRequest, model: Any, names: Any, writer: Any, monitor: Any) -> Counter[str | None]:
    """Write rows and watch their scores, batch by batch; return how many have which verdict, or are "skipped"."""
    from abnn.cli._inputs import read_inputs
    from abnn.cli._rows import predict_rows
    from abnn.data import InputForm
    from abnn.data.drawing import InkForm

    form = InkForm.of(model) if request.ink else InputForm.of(model)
    draws, seed = common.draws_and_seed(model, request.draws, request.seed)
    counts: Counter[str | None] = Counter()
    with _progress_bar(request.quiet) as bar:
        task = bar.add_task("", total=None)
        for batch in read_inputs(names, form, request.batch_size):
            if batch.names:
                rows = predict_rows(model, batch.names, batch.x, draws, seed)
                try:
                    writer(rows, counts.total() == counts["skipped"])
                    sys.stdout.flush()
                except BrokenPipeError:
                    raise AbnnError("standard output was closed before all was written.") from None
                counts.update(row.verdict for row in rows)
                if monitor is not None:
                    monitor.update([row.score for row in rows])
            for name, why in batch.unreadable:
                if not request.skip_unreadable:
                    fix = "Leave it out, or pass --skip-unreadable to go on without it."
                    actual = f"{name}, which cannot be read: {why}"
                    raise InputError(explain("INPUT", actual, "images, or rows of numbers", fix))
                counts["skipped"] += 1
                text = visible(f"abnn: skipped {name}: {why}")
                bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            bar.advance(task, len(batch.names))
    if counts.total() == counts["skipped"]:
        actual = f"{counts['skipped']} inputs, none of which can be read"
        raise InputError(explain("INPUT", actual, "at least one image"))
    return counts


def _open_monitor(model: Any, path: Path | None) -> Any:
    from abnn.triage.drift import resume_monitor

    if path is None:
        return None
    triage = getattr(model, "triage", None)
    if triage is None:
        raise InputError(explain("--drift", str(path), "a model with thresholds, for there is nothing to compare with"))
    try:
        return resume_monitor(triage.monitor(), path)
    except FileFormatError as error:
        raise FileFormatError(f"--drift: {path} cannot be used: {error}") from None


def _summarise(counts: Counter[str | None], has_thresholds: bool) -> None:
    words = {"accept": "accepted", "notice": "noticed", "reject": "rejected"} if has_thresholds else {}
    parts = [f"{counts[verdict]:,} {word}" for verdict, word in words.items()]
    parts += [f"{counts['skipped']:,} skipped"] if counts["skipped"] else []
    total = counts.total() - counts["skipped"]
    typer.echo(f"{total:,} inputs" + (": " if parts else "") + ", ".join(parts), err=True)
    if not has_thresholds:
        typer.echo("The model was saved without thresholds, so there are no verdicts; see abnn.calibrate.", err=True)


def _progress_bar(quiet: bool) -> Any:
    """A count on standard error, where a person looks at it and it does not run into rows on the same screen."""
    from rich.console import Console
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    console, columns = Console(stderr=True), (TextColumn("{task.completed:,.0f} inputs"), TimeElapsedColumn())
    hidden = quiet or not console.is_terminal or sys.stdout.isatty()
    return Progress(*columns, console=console, disable=hidden, transient=True)
