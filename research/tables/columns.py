"""Columns of a table: a metric of the records, its unit, its digits, and which direction is better."""

from __future__ import annotations

from dataclasses import dataclass

from abnn.errors import InputError, explain, unknown

BETTER = ("higher", "lower", "neither")

_LOWER = ("ece", "adaptive_ece", "brier", "nll", "aurc", "augrc", "excess_aurc", "error_rate", "fpr_")
_THRESHOLDS = ("id_semi", "semi_full")
_NEITHER = (
    "mean_confidence",
    "optimal_aurc",
    "accept",
    "notice",
    "reject",
    "shuffled_",
    "kept_",
    "shuffles",
    *_THRESHOLDS,
)
_RAW = ("brier", "nll", "shuffles", *_THRESHOLDS)


@dataclass(frozen=True)
class Column:
    """One metric: ``path`` in the record, multiplied by ``scale`` and shown with ``digits`` decimals."""

    header: str
    path: str
    scale: float = 100.0
    digits: int = 1
    better: str = "higher"

    def __post_init__(self) -> None:
        if self.better not in BETTER:
            raise unknown("better", self.better, BETTER)
        if not isinstance(self.digits, int) or not 0 <= self.digits <= 15:
            raise InputError(explain("digits", repr(self.digits), "a whole number from 0 to 15"))


def column_for(path: str, header: str = "") -> Column:
    """A column for a metric of :mod:`abnn.evaluate.summary`: which direction is better, and percent or not, follow from its name."""
    leaf = path.rpartition(".")[2]
    if path.startswith("accuracy."):  # what follows is the name of a set, and says nothing
        return Column(header or path, path)
    if leaf.isdigit():  # a cell of a confusion matrix
        return Column(header or path, path, scale=1.0, better="neither")
    better = "neither" if leaf.startswith(_NEITHER) else "lower" if leaf.startswith(_LOWER) else "higher"
    scale, digits = (1.0, 3) if leaf.startswith(_RAW) else (100.0, 2 if "aurc" in leaf or "augrc" in leaf else 1)
    return Column(header or path, path, scale, digits, better)


def with_arrow(column: Column) -> str:
    """The header, with the direction that is better."""
    return column.header + {"higher": " ↑", "lower": " ↓", "neither": ""}[column.better]
