"""Records as a table in Markdown: one row for each model, or its difference from another one on the same seeds."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.records import Record
from abnn.metrics import SeedSummary, over_seeds
from research.metrics import paired_test
from research.tables.columns import Column, check_paths, with_arrow

MISSING = "–"
Groups = dict[str, list[Record]]


def render(records: Sequence[Record], columns: Sequence[Column], rows: Sequence[str] | None = None) -> str:
    """Return one row for each name, in the order of ``rows`` or sorted: mean ± sample standard deviation over seeds.

    The best mean of a column is bold, as are those that are shown with the same digits. An entry with fewer seeds than its
    row says so: the metric was undefined in the others, as misclassification is for a model without errors.
    """
    groups = _group(records, columns, rows)
    entries = [_column_entries(column, groups) for column in columns]
    body = [
        [name, str(len(group)), *(column[number] for column in entries)]
        for number, (name, group) in enumerate(groups.items())
    ]
    return markdown_table(["name", "seeds", *map(with_arrow, columns)], body)


def render_paired(records: Sequence[Record], columns: Sequence[Column], against: str) -> str:
    """Return each row minus the row ``against``, on the seeds that both have, with the p-value of the paired test.

    Where a metric is undefined in all these seeds, as misclassification is for a model without errors, there is no number.
    """
    groups = _group(records, columns, None)
    if against not in groups:
        raise unknown("against", against, groups)
    body = [
        [name, *(_paired_entry(column, groups, name, against) for column in columns)]
        for name in groups
        if name != against
    ]
    return markdown_table([f"name, minus {against}", *map(with_arrow, columns)], body)


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


def _group(records: Sequence[Record], columns: Sequence[Column], rows: Sequence[str] | None) -> Groups:
    """Records by name and, within a name, by seed, after checking that columns and rows exist and seeds are unique."""
    if not records:
        raise InputError(explain("records", "none", "at least one record", "Check the folder and the filters."))
    check_paths(records, [column.path for column in columns])
    named: Groups = {}
    for record in sorted(records, key=lambda each: (each.name, each.seed, str(each.path))):
        named.setdefault(record.name, []).append(record)
    for name, group in named.items():
        for one, other in itertools.pairwise(group):
            if one.seed == other.seed:
                given = f"{one.path} and {other.path}, both {name!r} with seed {one.seed}"
                fix = "Filter by experiment or name."
                raise InputError(explain("records", given, "one record for each row and seed", fix))
    for row in rows or ():
        if row not in named:
            raise unknown("rows", row, named)
    return named if rows is None else {row: named[row] for row in rows}


def _column_entries(column: Column, groups: Groups) -> list[str]:
    """One entry for each group; the best mean as shown is bold where there is another one to compare it with."""
    values = [[each.numbers[column.path] for each in group if column.path in each.numbers] for group in groups.values()]
    summaries = [over_seeds(each) if each else None for each in values]
    shown = [None if each is None else float(_fixed(each.mean * column.scale, column.digits)) for each in summaries]
    defined = [each for each in shown if each is not None]
    choose = {"higher": max, "lower": min}.get(column.better) if len(defined) > 1 else None
    entries = []
    for mean, summary, group in zip(shown, summaries, groups.values(), strict=True):
        if summary is None:
            entries.append(MISSING)
            continue
        text = mean_text(summary, column) + (f" (n={summary.n})" if summary.n < len(group) else "")
        entries.append(f"**{text}**" if choose is not None and mean == choose(defined) else text)
    return entries


def _paired_entry(column: Column, groups: Groups, name: str, against: str) -> str:
    ours, theirs = ({each.seed: each.numbers.get(column.path) for each in groups[row]} for row in (name, against))
    if ours.keys().isdisjoint(theirs):
        given = f"{name!r} with the seeds {sorted(ours)}, {against!r} with {sorted(theirs)}"
        fix = "Run both with the same seeds."
        raise InputError(explain("records", given, "at least one seed that both have", fix))
    seeds = [seed for seed in sorted(ours) if ours[seed] is not None and theirs.get(seed) is not None]
    if not seeds:
        return MISSING
    test = paired_test([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    shown = _fixed(test.mean_difference * column.scale, column.digits)
    return f"{'+' if float(shown) > 0 else ''}{shown} (p={test.p_value:.2g}, n={test.n})"


def _fixed(value: float, digits: int) -> str:
    """So many decimals, and no sign before zero."""
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text
