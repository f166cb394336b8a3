"""Tables of numbers as plain data: a metric with its explanation, one cell per model, and the difference of two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from abnn.evaluate.report.measure import Key, Numbers
from abnn.evaluate.report.texts import METRICS, Metric
from abnn.metrics import Interval

GAP = "\u202f"  # a thin space that does not break
MINUS = "\u2212"


def shown(value: float, metric: Metric, signed: bool = False) -> str:
    """97.6 % or 0.123; a sign in front where the number is a difference."""
    number = f"{100 * value:.1f}" if metric.percent else f"{value:.3f}"
    size = number.lstrip("-")
    zero = not size.strip("0.")
    sign = "" if zero else MINUS if number.startswith("-") else "+" if signed else ""
    unit = "" if not metric.percent else f"{GAP}points" if signed else f"{GAP}%"
    return f"{sign}{size}{unit}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{GAP}%"


def cell(interval: Interval | None, metric: Metric, signed: bool = False) -> dict[str, str] | None:
    """The value and the ends of its interval, as printed."""
    if interval is None:
        return None
    low, high = (shown(bound, metric, signed).split(GAP)[0] for bound in (interval.low, interval.high))
    return {"value": shown(interval.estimate, metric, signed), "low": low, "high": high}


def judge(interval: Interval | None, metric: Metric) -> tuple[str, str]:
    """Whether a difference is more than the choice of test inputs explains: in words, and as a CSS class."""
    if interval is None:
        return "not compared", "same"
    if interval.low <= 0 <= interval.high:
        return "no clear difference", "same"
    return ("better", "better") if (interval.low > 0) == metric.higher else ("worse", "worse")


def table_rows(numbers: Numbers, rows: Sequence[tuple[Metric, Key]]) -> list[dict[str, Any]]:
    """Return the rows that any model has; ``difference`` is there in all of them if it is in one."""
    present = [row for row in rows if any(row[1] in of_model for of_model in numbers.by_model)]
    compared = any(key in numbers.difference for _, key in present)
    lines = []
    for metric, key in present:
        intervals = [of_model.get(key) for of_model in numbers.by_model]
        line: dict[str, Any] = {"metric": metric, "cells": [cell(each, metric) for each in intervals]}
        line["best"] = _best(intervals, metric)
        if compared:
            difference = numbers.difference.get(key)
            line["difference"] = cell(difference, metric, signed=True)
            line["word"], line["kind"] = judge(difference, metric)
        lines.append(line)
    return lines


def rows_for(metrics: Sequence[str], name: str = "") -> list[tuple[Metric, Key]]:
    return [(METRICS[metric], (metric, name)) for metric in metrics]


def _best(intervals: Sequence[Interval | None], metric: Metric) -> set[int]:
    """Places of the best of several values, as they are printed; nobody is best where all agree."""
    printed = {place: float(f"{each.estimate:.3f}") for place, each in enumerate(intervals) if each is not None}
    if len(set(printed.values())) < 2:
        return set()
    best = (max if metric.higher else min)(printed.values())
    return {place for place, value in printed.items() if value == best}
