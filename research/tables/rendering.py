"""Records as a table: one row for each model, or its difference from another one on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.records import Record
from research.metrics import PairedTest, paired_test
from research.tables.cells import MISSING, Cell, column_cells, fixed, ten_digits
from research.tables.columns import Column, with_arrow
from research.tables.formats import writer_for
from research.tables.groups import group_records

Groups = dict[str, list[Record]]


def render(
    records: Sequence[Record],
    columns: Sequence[Column],
    by: str = "name",
    format: str = "markdown",
    rows: Sequence[str] | None = None,
) -> str:
    """One row for each value of ``by`` (a field of `Record`, or ``config.some.key``), in the order of ``rows`` or sorted.

    The best mean of a column is bold, as are those that are shown with the same digits. A cell with fewer seeds than its
    row says so: the metric was undefined in the others, as misclassification is for a model without errors.
    """
    groups = group_records(records, columns, by, rows)
    cells = [column_cells(column, groups) for column in columns]
    body = [
        [Cell(label, (label,)), Cell(str(len(group)), (str(len(group)),)), *(column[number] for column in cells)]
        for number, (label, group) in enumerate(groups.items())
    ]
    heads = [(with_arrow(column), [column.header, f"{column.header} std", f"{column.header} n"]) for column in columns]
    return writer_for(format)([(by, [by]), ("seeds", ["seeds"]), *heads], body)


def render_paired(
    records: Sequence[Record], columns: Sequence[Column], against: str, by: str = "name", format: str = "markdown"
) -> str:
    """Each row minus the row ``against``, on the seeds that both have, with the p-value of the paired test.

    Where a metric is undefined in all these seeds, as misclassification is for a model without errors, there is no number.
    """
    groups = group_records(records, columns, by, None)
    if against not in groups:
        raise unknown("against", against, groups)
    body = [
        [Cell(label, (label,)), *(_paired_cell(column, groups, label, against) for column in columns)]
        for label in groups
        if label != against
    ]
    heads = [
        (with_arrow(column), [f"{column.header} {part}" for part in ("difference", "p", "n")]) for column in columns
    ]
    return writer_for(format)([(f"{by}, minus {against}", [by]), *heads], body)


def paired(records: Sequence[Record], first: str, second: str, path: str, by: str = "name") -> PairedTest:
    """The paired test of ``first`` minus ``second`` for one metric over the seeds that both have."""
    groups = group_records(records, [Column(path, path)], by, [first, second])
    test = _test(groups, first, second, path)
    if test is None:
        raise _nothing_to_pair(groups, first, second, path)
    return test


def _test(groups: Groups, first: str, second: str, path: str) -> PairedTest | None:
    """None where the metric is undefined in every seed that both have."""
    ours, theirs = ({record.seed: record.numbers.get(path) for record in groups[name]} for name in (first, second))
    if ours.keys().isdisjoint(theirs):
        raise _nothing_to_pair(groups, first, second, path)
    seeds = [seed for seed in sorted(ours) if ours[seed] is not None and theirs.get(seed) is not None]
    return paired_test([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]) if seeds else None


def _nothing_to_pair(groups: Groups, first: str, second: str, path: str) -> InputError:
    seeds = [[record.seed for record in groups[name]] for name in (first, second)]
    given = f"{first!r} with the seeds {seeds[0]}, {second!r} with {seeds[1]}"
    fix = f"Run both with the same seeds, and check that {path} is defined there."
    return InputError(explain("records", given, "at least one seed that both have", fix))


def _paired_cell(column: Column, groups: Groups, label: str, against: str) -> Cell:
    test = _test(groups, label, against, column.path)
    if test is None:
        return Cell(MISSING, ("", "", "0"))
    difference = test.mean_difference * column.scale
    sign = "+" if float(fixed(difference, column.digits)) > 0 else ""
    text = f"{sign}{fixed(difference, column.digits)} (p={test.p_value:.2g}, n={test.n})"
    return Cell(text, (ten_digits(difference), ten_digits(test.p_value), str(test.n)))
