"""A table of the paper as data: which metrics, which rows, what the paper and the authors' logs say, and what we found.

Numbers of others are written as in their tables, "98.3±1.2" in percent, one for each column and "–" where there is none.
Ours are read from run records. Where they differ from the others' by more than a point *and* by more than two standard
deviations, 2 sqrt(s₁² + s₂²), they are marked: such a value was not reproduced.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.records import Record, read_record
from abnn.metrics import SeedSummary, over_seeds
from research.paper.cells import Cell, recorded_paths
from research.tables import MISSING, Column, markdown_table, mean_text, with_arrow

POINT = 1.0
"""Percentage points within which a mean counts as reproduced whatever the deviations are."""
ABOVE, BELOW = "▲", "▼"
SOURCES = ("logs", "paper")


class Archive:
    """What has been recorded so far below a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._known: dict[tuple[str, str], tuple[Record, ...]] = {}

    def of(self, cell: Cell) -> tuple[Record, ...]:
        """The records of a cell in the order of their seeds; none where it was not run.

        Runs with different settings have no common mean, so they are an error.
        """
        key = (cell.experiment, cell.name)
        if key not in self._known:
            self._known[key] = self._read(cell)
        return self._known[key]

    def over_seeds(self, cell: Cell, path: str) -> SeedSummary | None:
        """One metric over all seeds that have it."""
        values = [record.numbers[path] for record in self.of(cell) if path in record.numbers]
        return over_seeds(values) if values else None

    def _read(self, cell: Cell) -> tuple[Record, ...]:
        paths = recorded_paths(self.folder, cell.experiment, cell.name)
        records = sorted((read_record(path) for path in paths), key=lambda record: record.seed)
        for record in records[1:]:
            if record.config != records[0].config:
                fault = f"{records[0].path} and {record.path}, made with different settings"
                fix = "Delete the older ones, or run them again."
                raise InputError(explain("results", fault, "the same settings for all seeds of a row", fix))
        return tuple(records)


@dataclass(frozen=True)
class Row:
    """One method.

    cell       its runs; None where there are none and could be none
    paper      what the paper prints, separated by spaces
    logs       what the authors' own files give
    runs       how many runs these are of
    reference  which of the two our numbers should agree with; logs need to be there for it
    """

    label: str
    cell: Cell | None = None
    paper: str = ""
    logs: str = ""
    runs: str = ""
    reference: str = "logs"

    def __post_init__(self) -> None:
        if self.reference not in SOURCES:
            raise unknown("reference", self.reference, SOURCES)

    @property
    def published(self) -> list[tuple[str, list[str]]]:
        """The lines of others: where from, and the numbers."""
        lines = [("paper", self.paper), (f"logs, {self.runs}", self.logs)]
        return [(source, numbers.split()) for source, numbers in lines if numbers]

    def expected(self, place: int) -> tuple[float, float] | None:
        """Mean and deviation (0 where unknown) that the column at ``place`` should have, if anyone says."""
        texts = [self.logs, self.paper] if self.reference == "logs" else [self.paper]
        for numbers in (text.split() for text in texts if text):
            if (number := parse(numbers[place])) is not None:
                return number
        return None


@dataclass(frozen=True)
class Section:
    """Rows under common columns."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    about: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            for source, numbers in row.published:
                if len(numbers) != len(self.columns):
                    fault = f"{len(numbers)} numbers of {row.label!r} ({source}) in {self.title!r}"
                    raise InputError(explain(source, fault, f"{len(self.columns)}, one for each column"))


@dataclass(frozen=True)
class Table:
    """A table of the paper.

    text  its title, and after an empty line what it claims, what is wrong with it and what is measured here
    """

    text: str
    sections: Sequence[Section] = field(default_factory=tuple)

    @property
    def title(self) -> str:
        return self.text.strip().split("\n", 1)[0].rstrip(".")

    @property
    def about(self) -> str:
        return self.text.strip().partition("\n")[2].strip()

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All runs that the table needs."""
        rows = [row for section in self.sections for row in section.rows]
        return tuple({(row.cell.task, row.cell.name): row.cell for row in rows if row.cell is not None}.values())

    def markdown(self, results: str | Path | Archive) -> str:
        archive = results if isinstance(results, Archive) else Archive(results)
        parts = [f"### {self.title}", self.about]
        for section in self.sections:
            parts += [f"**{section.title}**", section.about, render(section, archive)]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"

    def tally(self, archive: Archive) -> Counter[str]:
        """How many published values were reproduced ("within"), missed (above, below) and not tried ("not run")."""
        count: Counter[str] = Counter()
        for section in self.sections:
            for row in section.rows:
                for place, column in enumerate(section.columns):
                    if row.cell is None or column.better == "neither" or row.expected(place) is None:
                        continue
                    here = archive.over_seeds(row.cell, column.path)
                    count["not run" if here is None else deviation(row, place, column, here) or "within"] += 1
        return count


def render(section: Section, archive: Archive) -> str:
    """A table with up to three lines for each row: paper, logs, and here."""
    best = [_best(column, section.rows, archive) for column in section.columns]
    lines = [line for row in section.rows for line in _lines(row, section.columns, best, archive)]
    return markdown_table(["method", "source", *(with_arrow(column) for column in section.columns)], lines, left=2)


def parse(text: str) -> tuple[float, float] | None:
    """Mean and deviation of "98.3±1.2"; without a deviation, or with "±NA", that is 0. A range is no number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?|NA))?", text)
    if match is None:
        return None
    return float(match[1]), float(match[2]) if match[2] and match[2] != "NA" else 0.0


def deviation(row: Row, place: int, column: Column, here: SeedSummary) -> str:
    """ABOVE or BELOW where our mean is away from the published one, else nothing."""
    expected = row.expected(place)
    if expected is None or column.better == "neither":
        return ""
    mean, spread = expected
    difference = here.mean * column.scale - mean
    allowed = max(POINT, 2 * math.hypot(spread, (here.std or 0.0) * column.scale))
    return "" if abs(difference) <= allowed else ABOVE if difference > 0 else BELOW


def _lines(row: Row, columns: Sequence[Column], best: Sequence[str], archive: Archive) -> Iterator[list[str]]:
    labels = [row.label]
    for source, numbers in row.published:
        yield [labels.pop() if labels else "", source, *(number.replace("±", " ± ") for number in numbers)]
    if row.cell is None:
        return
    runs = len(archive.of(row.cell))
    noun = "ensemble" if row.cell.ensemble else "seed" if runs == 1 else "seeds"
    source = f"here, {runs} {noun}" if runs else "here: not run"
    texts = [_here(row, place, columns[place], best[place], archive) for place in range(len(columns))]
    yield [labels.pop() if labels else "", source, *(texts if runs else [""] * len(columns))]


def _here(row: Row, place: int, column: Column, best: str, archive: Archive) -> str:
    assert row.cell is not None
    summary = archive.over_seeds(row.cell, column.path)
    if summary is None:
        return MISSING
    text = mean_text(summary, column)
    fewer = f" (n={summary.n})" if summary.n < len(archive.of(row.cell)) else ""
    bold = f"**{text}**" if text.split(" ")[0] == best else text
    return " ".join(part for part in (bold + fewer, deviation(row, place, column, summary)) if part)


def _best(column: Column, rows: Sequence[Row], archive: Archive) -> str:
    """The best mean of our lines as it is shown; nothing where there are fewer than two."""
    summaries = [archive.over_seeds(row.cell, column.path) for row in rows if row.cell is not None]
    shown = [mean_text(each, column).split(" ")[0] for each in summaries if each is not None]
    if len(shown) < 2 or column.better == "neither":
        return ""
    return (max if column.better == "higher" else min)(shown, key=float)
