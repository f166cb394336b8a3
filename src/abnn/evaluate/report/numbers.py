"""Tables of numbers: a metric with its explanation, one column per model, and the difference of two."""

from __future__ import annotations

from collections.abc import Sequence

from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report.markup import table, text
from abnn.evaluate.report.measure import Key, Numbers
from abnn.evaluate.report.texts import METRICS, Metric
from abnn.metrics import Interval

GAP = "\u202f"  # a thin space that does not break
MINUS = "\u2212"
FEW_COLUMNS = 4
"""As many fit beside each other on a phone once the explanation stands above the numbers."""


def shown(value: float, metric: Metric, signed: bool = False) -> str:
    """97.6 % or 0.123; a sign in front where the number is a difference."""
    number = f"{100 * value:.1f}" if metric.percent else f"{value:.3f}"
    size = number.lstrip("-")
    zero = not size.strip("0.")
    sign = ("" if zero else MINUS if number.startswith("-") else "+" if signed else "") if signed or not zero else ""
    unit = "" if not metric.percent else f"{GAP}points" if signed else f"{GAP}%"
    return f"{sign}{size}{unit}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{GAP}%"


def cell(interval: Interval | None, metric: Metric, best: bool = False) -> str:
    if interval is None:
        return '<span class="none" title="not defined here">\u2013</span>'
    value = f"<strong>{shown(interval.estimate, metric)}</strong>" if best else shown(interval.estimate, metric)
    low, high = (shown(bound, metric).removesuffix(f"{GAP}%") for bound in (interval.low, interval.high))
    return f'<span class="value">{value}</span><span class="range">{low} to {high}</span>'


def difference_cell(interval: Interval | None, metric: Metric) -> str:
    """The difference, its interval, and in words whether it is more than the choice of test inputs explains."""
    if interval is None:
        return '<span class="same">not compared</span>'
    if interval.low <= 0 <= interval.high:
        word, kind = "no clear difference", "same"
    else:
        good = (interval.low > 0) == metric.higher
        word, kind = ("better", "better") if good else ("worse", "worse")
    low, high = (
        shown(bound, metric, signed=True).removesuffix(f"{GAP}points") for bound in (interval.low, interval.high)
    )
    return (
        f'<span class="value">{shown(interval.estimate, metric, signed=True)}</span>'
        f'<span class="range">{low} to {high}</span><span class="{kind}">{word}</span>'
    )


def numbers_table(
    caption: str, evaluations: Sequence[Evaluation], numbers: Numbers, rows: Sequence[tuple[Metric, Key]]
) -> str:
    """Rows that no model has are left out; without any row there is no table."""
    kept = [row for row in rows if any(row[1] in of_model for of_model in numbers.by_model)]
    if not kept:
        return ""
    with_difference = any(key in numbers.difference for _, key in kept)
    head = ["What is measured", *(text(each.name) for each in evaluations)]
    if with_difference:
        head.append("Difference")
    lines = []
    for metric, key in kept:
        found = [of_model.get(key) for of_model in numbers.by_model]
        arrow = "higher is better" if metric.higher else "lower is better"
        line = [f'{text(metric.title)} <span class="arrow">{arrow}</span><span class="says">{text(metric.says)}</span>']
        line += [cell(each, metric, best=number in _best(found, metric)) for number, each in enumerate(found)]
        if with_difference:
            line.append(difference_cell(numbers.difference.get(key), metric))
        lines.append(line)
    kind = "numbers few" if len(head) <= FEW_COLUMNS else "numbers"
    return table(caption, head, lines, kind)


def rows_for(metrics: Sequence[str], name: str = "") -> list[tuple[Metric, Key]]:
    return [(METRICS[metric], (metric, name)) for metric in metrics]


def _best(found: Sequence[Interval | None], metric: Metric) -> set[int]:
    """Places of the best of several values, as they are printed; nobody is best where all agree."""
    printed = [None if each is None else float(f"{each.estimate:.3f}") for each in found]
    values = [value for value in printed if value is not None]
    if len(values) < 2 or min(values) == max(values):
        return set()
    best = max(values) if metric.higher else min(values)
    return {place for place, value in enumerate(printed) if value == best}
