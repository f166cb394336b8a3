"""The steps of ``abnn predict``, and predictions as lines of output: a table to read, JSON lines or CSV to process."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from abnn.cli._common import open_model, visible, write_options
from abnn.cli.predict import PredictRequest
from abnn.cli.steps.inputs import list_names, read_inputs
from abnn.data import InputForm
from abnn.data.drawing import InkForm, reads_drawings
from abnn.errors import FileFormatError, InputError, explain, import_extra, unknown
from abnn.export.artefact import ask, check_about_classes
from abnn.files import check_writable, write_bytes, write_text
from abnn.store.names import class_names_of
from abnn.triage.drift import resume_monitor

NOTICED, REJECTED = 10, 11
"""Exit statuses where the worst verdict is "notice" or "reject"; 0: all accepted, 2: an error."""
COLOURS = {"accept": "green", "notice": "yellow", "reject": "red"}


@dataclass(frozen=True)
class Row:
    """One input: the most probable class, its name if the model knows it, its probability, the score, the verdict."""

    input: str
    label: int
    class_name: str | None
    probability: float
    score: float
    verdict: str | None

    def values(self) -> dict[str, Any]:
        """By column, with the digits that mean something in 32 bits."""
        return {**asdict(self), "probability": round(self.probability, 6), "score": float(f"{self.score:.7g}")}


Writer = Callable[[Sequence[Row], bool], None]


def write_json_lines(stream: TextIO, rows: Sequence[Row], first: bool) -> None:
    for row in rows:  # JSON has no word for NaN and infinities
        finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.values().items()}
        stream.write(json.dumps(finite, allow_nan=False) + "\n")


def write_csv(stream: TextIO, rows: Sequence[Row], first: bool) -> None:
    lines = csv.writer(stream, lineterminator="\n")
    if first:
        lines.writerow([field.name for field in fields(Row)])
    for row in rows:
        lines.writerow([visible(cell) if isinstance(cell, str) else cell for cell in row.values().values()])


def write_table(stream: TextIO, rows: Sequence[Row], first: bool) -> None:
    """Write a part of a table: columns have fixed widths, so that a batch can be shown before the next one is known."""
    # Without a terminal rich assumes 80 columns and breaks names that a reader of a log wants whole.
    console = Console(file=stream, width=None if stream.isatty() else 160)
    table = Table(box=None, show_header=first, width=console.width, pad_edge=False)
    table.add_column("input", ratio=1, overflow="fold")
    table.add_column("class", width=20, overflow="fold")
    table.add_column("probability", width=11, justify="right")
    table.add_column("score", width=9, justify="right")
    table.add_column("verdict", width=7)
    for row in rows:
        name = str(row.label) if row.class_name in (None, str(row.label)) else f"{row.label} {row.class_name}"
        verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]" if row.verdict else "-"
        texts = (escape(visible(text)) for text in (row.input, name))
        table.add_row(*texts, f"{100 * row.probability:.1f} %", f"{row.score:.4f}", verdict)
    with console.capture() as capture:  # rich would end the process where nobody reads any more
        console.print(table)
    stream.write(capture.get())


FORMATS = {"table": write_table, "jsonl": write_json_lines, "csv": write_csv}
"""Each writes rows to a stream; its last argument says whether they are the first ones."""


class OutputFile:
    """Rows that become a file when all of them are there; by its ending, Parquet, CSV or JSON lines."""

    def __init__(self, path: Path) -> None:
        check_writable("--output", path)
        self.path, self.rows, self.ending = path, list[Row](), path.suffix.lower()
        if self.ending not in (".parquet", ".csv", ".jsonl"):
            raise InputError(explain("--output", str(path), "a name that ends with .parquet, .csv or .jsonl"))
        if self.ending == ".parquet":
            import_extra("pyarrow", "scale")

    def add(self, rows: Sequence[Row], first: bool) -> None:
        self.rows += rows

    def write(self) -> None:
        """Write all rows, and beside them the options that made them."""
        if self.ending == ".parquet":
            import pyarrow
            from pyarrow import parquet

            columns = {each.name: [getattr(row, each.name) for row in self.rows] for each in fields(Row)}
            buffer = io.BytesIO()
            parquet.write_table(pyarrow.table(columns), buffer)
            write_bytes(self.path, buffer.getvalue())
        else:
            text = io.StringIO()
            FORMATS[self.ending[1:]](text, self.rows, True)
            write_text(self.path, text.getvalue())
        write_options(self.path.with_suffix(".run.toml"))


def run(request: PredictRequest) -> int:
    """Predict everything that was named and return the exit status of the worst verdict."""
    names = list_names(request.inputs or [], request.from_file)
    file = None if request.output is None else OutputFile(request.output)
    if file is None and request.format not in FORMATS:
        raise unknown("--format", request.format, FORMATS)
    writer = partial(FORMATS[request.format], sys.stdout) if file is None else file.add
    if request.drift is not None:
        check_writable("--drift", request.drift)
    model, _ = open_model(request.model, request.backbone, request.weights, request.device)
    check_about_classes(model)
    monitor = None if request.drift is None else _open_monitor(model, request.drift, request.draws)
    already = monitor is not None and monitor.alarmed
    try:
        counts = _predict_all(request, model, names, writer, monitor)
    finally:
        if monitor is not None:
            monitor.save(request.drift)
    if file is not None:
        file.write()
    if not request.quiet:
        _summarise(counts, getattr(model, "triage", None) is not None)
        if counts["reject"] and not request.ink and reads_drawings(model):
            typer.echo("If a rejected picture is a digit written on paper: --ink finds the ink first.", err=True)
    if monitor is not None and monitor.alarmed:
        when = "earlier" if already else f"after {monitor.alarmed_at:,} inputs"
        evidence = f"scores are {monitor.direction} than in calibration (evidence against chance {monitor.p_value:.1e})"
        promise = "the promised shares of verdicts do not hold for such inputs"
        typer.echo(f"abnn: drift, noticed {when}: {evidence}; {promise}.", err=True)
    return REJECTED if counts["reject"] else NOTICED if counts["notice"] else 0


def _predict_all(
    request: PredictRequest, model: Any, names: Iterable[str], writer: Writer, monitor: Any
) -> Counter[str | None]:
    """Write rows and watch their scores, batch by batch; return how many have which verdict, or are "skipped"."""
    form = InkForm.of(model) if request.ink else InputForm.of(model)
    counts: Counter[str | None] = Counter()
    # A count on standard error, where a person looks at it and it does not run into rows on the same screen.
    console, columns = Console(stderr=True), (TextColumn("{task.completed:,.0f} inputs"), TimeElapsedColumn())
    hidden = request.quiet or not console.is_terminal or (request.output is None and sys.stdout.isatty())
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("", total=None)
        for batch in read_inputs(names, form, request.batch_size):
            if batch.names:
                rows = _predict(model, batch.names, batch.x, request.draws, request.seed)
                writer(rows, counts.total() == counts["skipped"])
                sys.stdout.flush()  # where nobody reads any more, this ends the command without a word, as typer does
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
        raise InputError(
            explain("INPUT", f"{counts['skipped']} inputs, none of which can be read", "at least one image")
        )
    return counts


def _predict(model: Any, names: list[str], x: Any, draws: int | None, seed: int | None) -> list[Row]:
    """Return what the model says about each input; verdicts and probabilities that come true if it has thresholds."""
    answers, classes = ask(model, x, draws, seed), class_names_of(model)
    probs = answers.probs if answers.stated is None else answers.stated
    assert probs is not None
    labels: list[int] = probs.argmax(1).tolist()
    verdicts: Sequence[str | None] = answers.verdict or [None] * len(names)
    words = [classes[label] if classes else None for label in labels]
    return [Row(*row) for row in zip(names, labels, words, probs.max(1).tolist(), answers.score.tolist(), verdicts)]


def _open_monitor(model: Any, path: Path, draws: int | None) -> Any:
    if getattr(model, "triage", None) is None:
        raise InputError(explain("--drift", str(path), "a model with thresholds, for there is nothing to compare with"))
    if draws not in (None, model.triage.draws):
        accepted = f"--draws {model.triage.draws}, as calibrated: scores of another number cannot be compared"
        raise InputError(explain("--drift", f"--draws {draws}", accepted, "Leave out --draws, or --drift."))
    try:
        return resume_monitor(model.triage.monitor(), path)
    except FileFormatError as error:
        raise FileFormatError(f"--drift: {path} cannot be used: {error}") from None


def _summarise(counts: Counter[str | None], has_thresholds: bool) -> None:
    words = {"accept": "accepted", "notice": "noticed", "reject": "rejected"} if has_thresholds else {}
    parts = [f"{counts[verdict]:,} {word}" for verdict, word in words.items()]
    parts += [f"{counts['skipped']:,} skipped"] if counts["skipped"] else []
    total = counts.total() - counts["skipped"]
    typer.echo(f"{total:,} input{'' if total == 1 else 's'}" + (": " if parts else "") + ", ".join(parts), err=True)
    if not has_thresholds:
        typer.echo("The model was saved without thresholds, so there are no verdicts; see abnn.calibrate.", err=True)
