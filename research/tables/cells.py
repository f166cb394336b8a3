"""What stands in one cell: the mean of a metric over seeds and its sample standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

from abnn.evaluate.records import Record
from abnn.metrics import SeedSummary, over_seeds
from research.tables.columns import Column

MISSING = "–"


@dataclass(frozen=True)
class Cell:
    """``text`` for readers, ``raw`` for the columns of the CSV file."""

    text: str
    raw: tuple[str, ...]
    best: bool = False


def column_cells(column: Column, groups: dict[str, list[Record]]) -> list[Cell]:
    """One cell for each group; the best mean as shown is marked where there is another one to compare it with."""
    values = [
        [record.numbers[column.path] for record in group if column.path in record.numbers] for group in groups.values()
    ]
    summaries = [over_seeds(each) if each else None for each in values]
    shown = [None if each is None else fixed(each.mean * column.scale, column.digits) for each in summaries]
    defined = [float(each) for each in shown if each is not None]
    best = {"higher": max, "lower": min}.get(column.better) if len(defined) > 1 else None
    cells = []
    for text, summary, group in zip(shown, summaries, groups.values(), strict=True):
        if text is None or summary is None:
            cells.append(Cell(MISSING, ("", "", "0")))
            continue
        raw_std = "" if summary.std is None else ten_digits(summary.std * column.scale)
        fewer = f" (n={summary.n})" if summary.n < len(group) else ""
        cells.append(
            Cell(
                mean_text(summary, column) + fewer,
                (ten_digits(summary.mean * column.scale), raw_std, str(summary.n)),
                best=best is not None and float(text) == best(defined),
            )
        )
    return cells


def mean_text(summary: SeedSummary, column: Column) -> str:
    """Mean ± sample standard deviation as the column wants it; a single run has no deviation."""
    parts = (summary.mean,) if summary.std is None else (summary.mean, summary.std)
    return " ± ".join(fixed(part * column.scale, column.digits) for part in parts)


def fixed(value: float, digits: int) -> str:
    """So many decimals, and no sign before zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def ten_digits(value: float) -> str:
    """Ten significant digits: more than any metric deserves, fewer than the last bits in which processors differ."""
    return f"{value:.10g}"
