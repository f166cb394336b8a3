"""How numbers are shown: each in plain words, from ``metrics.json``, with its unit and its direction."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files

from abnn.metrics import Interval

GAP = "\u202f"  # a thin space that does not break
MINUS = "\u2212"


@dataclass(frozen=True)
class Metric:
    """How one number is shown. ``percent`` numbers are fractions; ``higher`` says whether more of it is better."""

    title: str
    says: str
    higher: bool = True
    percent: bool = True


_WORDS = json.loads(files("abnn.evaluate.report").joinpath("metrics.json").read_text(encoding="utf-8"))
METRICS = {name: Metric(**words) for name, words in _WORDS["metrics"].items()}
TABLES: dict[str, list[str]] = _WORDS["tables"]
"""The numbers of each table of the page."""


def as_text(value: float, metric: Metric, signed: bool = False, unit: bool = True) -> str:
    """97.6 % or 0.123; a sign in front where the number is a difference."""
    number = f"{100 * value:.1f}" if metric.percent else f"{value:.3f}"
    size = number.lstrip("-")
    zero = not size.strip("0.")
    sign = "" if zero else MINUS if number.startswith("-") else "+" if signed else ""
    word = "" if not (metric.percent and unit) else f"{GAP}points" if signed else f"{GAP}%"
    return f"{sign}{size}{word}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{GAP}%"


def judge(difference: Interval | None, metric: Metric) -> str:
    """Whether a difference is more than the choice of test inputs explains."""
    if difference is None:
        return "not compared"
    if difference.low <= 0 <= difference.high:
        return "no clear difference"
    return "better" if (difference.low > 0) == metric.higher else "worse"
