"""Predictions as lines of output, written as they come: a table to read, JSON lines or CSV to process."""

from __future__ import annotations

import csv
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from abnn.errors import unknown

COLOURS = {"accept": "green", "notice": "yellow", "reject": "red", None: ""}


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


class Writer(ABC):
    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    @abstractmethod
    def write(self, rows: Sequence[Row]) -> None: ...


class JsonLines(Writer):
    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values = {key: None if _not_finite(value) else value for key, value in row.values().items()}
            self.stream.write(json.dumps(values, allow_nan=False) + "\n")
        self.stream.flush()


class Csv(Writer):
    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self.csv = csv.writer(stream, lineterminator="\n")
        self.head = True

    def write(self, rows: Sequence[Row]) -> None:
        if self.head:
            self.csv.writerow([field.name for field in fields(Row)])
            self.head = False
        for row in rows:
            self.csv.writerow(["" if value is None else value for value in row.values().values()])
        self.stream.flush()


class Lines(Writer):
    """A table that grows: columns have fixed widths, so that a batch can be shown before the next one is known."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        # Without a terminal rich assumes 80 columns and breaks names that a reader of a log wants whole.
        self.console = Console(file=stream, width=None if stream.isatty() else 160)
        self.head = True

    def write(self, rows: Sequence[Row]) -> None:
        table = Table(box=None, show_header=self.head, width=self.console.width, pad_edge=False)
        table.add_column("input", ratio=1, overflow="fold")
        table.add_column("class", width=20, overflow="fold")
        table.add_column("probability", width=11, justify="right")
        table.add_column("score", width=9, justify="right")
        table.add_column("verdict", width=7)
        for row in rows:
            shown = str(row.label) if row.class_name in (None, str(row.label)) else f"{row.label} {row.class_name}"
            verdict = f"[{COLOURS[row.verdict]}]{row.verdict}[/]" if row.verdict else "-"
            table.add_row(
                escape(row.input), escape(shown), f"{100 * row.probability:.1f} %", f"{row.score:.4f}", verdict
            )
        if rows:
            self.console.print(table)
            self.head = False


def _not_finite(value: Any) -> bool:
    """NaN and infinities, for which JSON has no word."""
    return isinstance(value, float) and not math.isfinite(value)


WRITERS = {"table": Lines, "jsonl": JsonLines, "csv": Csv}


def make_writer(format: str, stream: TextIO | None = None) -> Writer:
    if format not in WRITERS:
        raise unknown("--format", format, WRITERS)
    return WRITERS[format](stream or sys.stdout)  # type: ignore[abstract]
