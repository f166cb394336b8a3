"""Predictions as lines of output, written as they come: a table to read, JSON lines or CSV to process."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor

from abnn.cli._common import visible
from abnn.errors import unknown
from abnn.store.saved import class_names_of

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


def predict_rows(model: Any, names: list[str], x: Tensor, draws: int, seed: int) -> list[Row]:
    """Return what the model says about each input; verdicts and probabilities that come true if it has thresholds."""
    prediction, triage, classes = (
        model.predict(x, draws=draws, seed=seed),
        getattr(model, "triage", None),
        class_names_of(model),
    )
    score, verdicts, probs = prediction.score, [None] * len(names), prediction.probs
    if triage is not None:
        judged = triage(prediction)
        score, verdicts, probs = judged.score, judged.verdict, triage.probabilities(prediction)
    top, labels = probs.max(-1)
    columns = zip(names, labels.tolist(), top.tolist(), score.tolist(), verdicts)
    return [Row(name, label, classes[label] if classes else None, *rest) for name, label, *rest in columns]


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


def make_writer(format: str, stream: TextIO) -> Callable[[Sequence[Row], bool], None]:
    """Return a function that writes rows to a stream; its second argument says whether they are the first ones."""
    if format not in FORMATS:
        raise unknown("--format", format, FORMATS)
    return partial(FORMATS[format], stream)
