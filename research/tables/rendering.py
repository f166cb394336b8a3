"""Records as a table: one row for each model, or its difference from another one on the same seeds."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.records import Record
from abnn.metrics import SeedSummary, over_seeds, paired_test
from research.tables.columns import Column, check_paths, with_arrow

MISSING = "–"
Groups = dict[str, list[Record]]
Heads = Sequence[tuple[str, list[str]]]
"""Each head for readers, with its columns in the CSV file."""


@dataclass(frozen=True)
class Entry:
    """What stands in one place of a table: ``text`` for readers, ``raw`` for the columns of the CSV file."""

    text: str
    raw: tuple[str, ...]
    best: bool = False


def render(
    records: Sequence[Record],
    columns: Sequence[Column],
    by: str = "name",
    format: str = "markdown",
    rows: Sequence[str] | None = None,
) -> str:
    """Return one row for each value of ``by`` (a field of `Record`, or ``config.some.key``), in the order of ``rows`` or sorted.

    The best mean of a column is bold, as are those that are shown with the same digits. An entry with fewer seeds than its
    row says so: the metric was undefined in the others, as misclassification is for a model without errors.
    """
    groups = _group(records, columns, by, rows)
    entries = [_column_entries(column, groups) for column in columns]
    body = [
        [Entry(label, (label,)), Entry(str(len(group)), (str(len(group)),)), *(column[number] for column in entries)]
        for number, (label, group) in enumerate(groups.items())
    ]
    heads = [(with_arrow(column), [column.header, f"{column.header} std", f"{column.header} n"]) for column in columns]
    return _writer(format)([(by, [by]), ("seeds", ["seeds"]), *heads], body)


def render_paired(
    records: Sequence[Record], columns: Sequence[Column], against: str, by: str = "name", format: str = "markdown"
) -> str:
    """Return each row minus the row ``against``, on the seeds that both have, with the p-value of the paired test.

    Where a metric is undefined in all these seeds, as misclassification is for a model without errors, there is no number.
    """
    groups = _group(records, columns, by, None)
    if against not in groups:
        raise unknown("against", against, groups)
    body = [
        [Entry(label, (label,)), *(_paired_entry(column, groups, label, against) for column in columns)]
        for label in groups
        if label != against
    ]
    parts = ("difference", "p", "n")
    heads = [(with_arrow(column), [f"{column.header} {part}" for part in parts]) for column in columns]
    return _writer(format)([(f"{by}, minus {against}", [by]), *heads], body)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Return a table in Markdown; all but the first ``left`` columns are numbers and lie to the right."""

    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(text.split()).replace('|', chr(92) + '|') for text in texts)} |"

    rule = f"|{'|'.join(['---'] * left + ['---:'] * (len(heads) - left))}|"
    return "\n".join([line(heads), rule, *map(line, rows)]) + "\n"


def mean_text(summary: SeedSummary, column: Column) -> str:
    """Return mean ± sample standard deviation as the column wants it; a single run has no deviation."""
    parts = (summary.mean,) if summary.std is None else (summary.mean, summary.std)
    return " ± ".join(_fixed(part * column.scale, column.digits) for part in parts)


def _group(records: Sequence[Record], columns: Sequence[Column], by: str, rows: Sequence[str] | None) -> Groups:
    """Records by label and, within a label, by seed, after checking that columns and rows exist and seeds are unique."""
    if not records:
        raise InputError(explain("records", "none", "at least one record", "Check the folder and the filters."))
    check_paths(records, [column.path for column in columns])
    labelled: Groups = {}
    for record in sorted(records, key=lambda each: (_numbers_first(_value_of(each, by)), each.seed, str(each.path))):
        labelled.setdefault(str(_value_of(record, by)), []).append(record)
    for label, group in labelled.items():
        for one, other in itertools.pairwise(group):
            if one.seed == other.seed:
                given = f"{one.path} and {other.path}, both {label!r} with seed {one.seed}"
                fix = "Filter by experiment or name, or group by what differs between them."
                raise InputError(explain("records", given, "one record for each row and seed", fix))
    for row in rows or ():
        if row not in labelled:
            raise unknown("rows", row, labelled)
    return labelled if rows is None else {row: labelled[row] for row in rows}


def _value_of(record: Record, by: str) -> Any:
    first, *keys = by.split(".")
    known = [field.name for field in fields(Record) if field.type in ("str", "int")]
    if first not in ([*known, "config"] if keys else known):
        raise unknown("by", by, [*known, "config.KEY"])
    value = getattr(record, first)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise InputError(explain("by", repr(by), f"a key of the config of {record.path}"))
        value = value[key]
    return value if isinstance(value, str | int | float) else str(value)


def _numbers_first(value: Any) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def _column_entries(column: Column, groups: Groups) -> list[Entry]:
    """One entry for each group; the best mean as shown is marked where there is another one to compare it with."""
    values = [[each.numbers[column.path] for each in group if column.path in each.numbers] for group in groups.values()]
    summaries = [over_seeds(each) if each else None for each in values]
    shown = [None if each is None else float(_fixed(each.mean * column.scale, column.digits)) for each in summaries]
    defined = [each for each in shown if each is not None]
    choose = {"higher": max, "lower": min}.get(column.better) if len(defined) > 1 else None
    entries = []
    for mean, summary, group in zip(shown, summaries, groups.values(), strict=True):
        if summary is None:
            entries.append(Entry(MISSING, ("", "", "0")))
            continue
        fewer = f" (n={summary.n})" if summary.n < len(group) else ""
        std = "" if summary.std is None else _ten_digits(summary.std * column.scale)
        raw = (_ten_digits(summary.mean * column.scale), std, str(summary.n))
        best = choose is not None and mean == choose(defined)
        entries.append(Entry(mean_text(summary, column) + fewer, raw, best))
    return entries


def _paired_entry(column: Column, groups: Groups, label: str, against: str) -> Entry:
    """An empty entry where the metric is undefined in every seed that both have."""
    ours, theirs = ({each.seed: each.numbers.get(column.path) for each in groups[name]} for name in (label, against))
    if ours.keys().isdisjoint(theirs):
        given = f"{label!r} with the seeds {sorted(ours)}, {against!r} with {sorted(theirs)}"
        fix = "Run both with the same seeds."
        raise InputError(explain("records", given, "at least one seed that both have", fix))
    seeds = [seed for seed in sorted(ours) if ours[seed] is not None and theirs.get(seed) is not None]
    if not seeds:
        return Entry(MISSING, ("", "", "0"))
    test = paired_test([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    difference = test.mean_difference * column.scale
    shown = _fixed(difference, column.digits)
    text = f"{'+' if float(shown) > 0 else ''}{shown} (p={test.p_value:.2g}, n={test.n})"
    return Entry(text, (_ten_digits(difference), _ten_digits(test.p_value), str(test.n)))


def _writer(format: str) -> Callable[[Heads, Sequence[Sequence[Entry]]], str]:
    writers = {"markdown": _markdown, "csv": _csv}
    if format not in writers:
        raise unknown("format", format, writers)
    return writers[format]


def _markdown(heads: Heads, body: Sequence[Sequence[Entry]]) -> str:
    rows = [[f"**{entry.text}**" if entry.best else entry.text for entry in row] for row in body]
    return markdown_table([head for head, _ in heads], rows)


def _csv(heads: Heads, body: Sequence[Sequence[Entry]]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name for _, names in heads for name in names])
    writer.writerows([part for entry in row for part in entry.raw] for row in body)
    return buffer.getvalue()


def _fixed(value: float, digits: int) -> str:
    """So many decimals, and no sign before zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def _ten_digits(value: float) -> str:
    """Ten significant digits: more than any metric deserves, fewer than the last bits in which processors differ."""
    return f"{value:.10g}"
