"""Tables from run records: mean and sample standard deviation over seeds, as Markdown, LaTeX or CSV.

The same records give the same bytes, in whatever order they come. Tables in documents stand between two markers and are
put there by `update_between_markers`, so that no number in them was ever typed.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from abnn.errors import FileFormatError, InputError, explain, unknown
from abnn.evaluation import TIERS
from abnn.files import write_bytes
from abnn.metrics import PairedTest, SeedSummary, over_seeds, paired_test
from abnn.records import Record

BETTER = ("higher", "lower", "neither")
PRESETS = ("overview", "detection", "paper-grid", "misclassification", "selective", "calibration", "tiers")
MISSING = "–"

_LOWER = ("ece", "adaptive_ece", "brier", "nll", "aurc", "augrc", "excess_aurc", "error_rate", "fpr_")
_NEITHER = ("mean_confidence", "optimal_aurc", "accept", "notice", "reject", "shuffled_", "kept_", "shuffles")
_RAW = ("brier", "nll", "id_semi", "semi_full", "shuffles")
_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "–": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": "$-$",
}


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


@dataclass(frozen=True)
class Cell:
    """``text`` for readers, ``raw`` for the columns of the CSV file."""

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
    """One row for each value of ``by`` (a field of `Record`, or ``config.some.key``), in the order of ``rows`` or sorted.

    The best mean of a column is bold, as are those that are shown with the same digits. A cell with fewer seeds than its
    row says so: the metric was undefined in the others, as misclassification is for a model without errors.
    """
    groups = _groups(records, columns, by, rows)
    cells = [_column_cells(column, groups) for column in columns]
    body = [
        [Cell(label, (label,)), Cell(str(len(group)), (str(len(group)),)), *(column[number] for column in cells)]
        for number, (label, group) in enumerate(groups.items())
    ]
    heads = [(with_arrow(column), [column.header, f"{column.header} std", f"{column.header} n"]) for column in columns]
    return _writer(format)([(by, [by]), ("seeds", ["seeds"]), *heads], body)


def render_paired(
    records: Sequence[Record], columns: Sequence[Column], against: str, by: str = "name", format: str = "markdown"
) -> str:
    """Each row minus the row ``against``, on the seeds that both have, with the p-value of the paired test."""
    groups = _groups(records, columns, by, None)
    if against not in groups:
        raise unknown("against", against, groups)
    body = [
        [Cell(label, (label,)), *(_paired_cell(column, records, label, against, by) for column in columns)]
        for label in groups
        if label != against
    ]
    heads = [
        (with_arrow(column), [f"{column.header} {part}" for part in ("difference", "p", "n")]) for column in columns
    ]
    return _writer(format)([(f"{by}, minus {against}", [by]), *heads], body)


def paired(records: Sequence[Record], first: str, second: str, path: str, by: str = "name") -> PairedTest:
    """The paired test of ``first`` minus ``second`` for one metric over the seeds that both have."""
    groups = _groups(records, [Column(path, path)], by, [first, second])
    ours, theirs = ({record.seed: record.numbers.get(path) for record in groups[name]} for name in (first, second))
    seeds = [seed for seed in sorted(ours) if ours[seed] is not None and theirs.get(seed) is not None]
    if not seeds:
        given = f"{first!r} with the seeds {sorted(ours)}, {second!r} with {sorted(theirs)}"
        fix = f"Run both with the same seeds, and check that {path} is defined there."
        raise InputError(explain("records", given, "at least one seed that both have", fix))
    return paired_test([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])


def columns_from(text: str, records: Sequence[Record]) -> list[Column]:
    """Columns from one line: presets, metric paths and ``header=path``, separated by commas."""
    columns: list[Column] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        if item in PRESETS:
            columns += preset(item, records)
        else:
            header, _, path = item.rpartition("=")
            columns.append(column_for(path.strip(), header.strip()))
    if not columns:
        raise InputError(explain("columns", repr(text), f"metric paths or presets ({', '.join(PRESETS)})"))
    return columns


def column_for(path: str, header: str = "") -> Column:
    """A column for a metric of `abnn.summary`: which direction is better, and percent or not, follow from its name."""
    leaf = path.rpartition(".")[2]
    if path.startswith("accuracy."):  # what follows is the name of a set, and says nothing
        return Column(header or path, path)
    if leaf.isdigit():  # a cell of a confusion matrix
        return Column(header or path, path, scale=1.0, better="neither")
    better = "neither" if leaf.startswith(_NEITHER) else "lower" if leaf.startswith(_LOWER) else "higher"
    scale, digits = (1.0, 3) if leaf.startswith(_RAW) else (100.0, 2 if "aurc" in leaf or "augrc" in leaf else 1)
    return Column(header or path, path, scale, digits, better)


def preset(name: str, records: Sequence[Record]) -> list[Column]:
    """The columns that ``name`` stands for, for the sets that occur in these records."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    sets = sorted(dict.fromkeys((TIERS.index(each.tier), each.name) for record in records for each in record.sets))
    candidates = [column_for(path, header) for path, header in _candidates(name, [each for _, each in sets])]
    return [column for column in candidates if any(column.path in record.numbers for record in records)]


def _candidates(name: str, sets: Sequence[str]) -> list[tuple[str, str]]:
    def each(family: str, *metrics: tuple[str, str]) -> list[tuple[str, str]]:
        return [(f"{family}.{one}.{metric}", f"{one} {label}") for one in sets for metric, label in metrics]

    auroc, area = ("auroc", "AUROC"), ("detection_accuracy", "detection accuracy")
    order = [
        ("tiers.auroc_id_below_semi", "id < semi"),
        ("tiers.auroc_semi_below_full", "semi < full"),
        ("tiers.auroc_id_below_full", "id < full"),
        ("tiers.ordered_triples", "ordered triples"),
    ]
    if name == "overview":
        accuracy = [(f"accuracy.{one}", f"{one} accuracy") for one in sets]
        return [
            *accuracy,
            *each("detection", auroc),
            *each("misclassification", ("auroc", "errors AUROC")),
            *order[1:4:2],
        ]
    if name == "detection":
        tnr, fpr = (
            ("tnr_at_tpr95_id_positive", "TNR at 95 % TPR (ID)"),
            ("fpr_at_tpr95_ood_positive", "FPR at 95 % TPR (OOD)"),
        )
        return each("detection", auroc, ("aupr_in", "AUPR in"), ("aupr_out", "AUPR out"), area, tnr, fpr)
    if name == "paper-grid":
        window = ("tnr_at_tpr95_window", "TNR window")
        return each("paper_grid_detection", window, auroc, area, ("aupr_in", "AUPR in"), ("aupr_out", "AUPR out"))
    if name == "misclassification":
        success, error = ("aupr_success", "AUPR success"), ("aupr_error", "AUPR error")
        return each("misclassification", ("accuracy", "accuracy"), auroc, success, error, area)
    if name == "selective":
        return each("selective", ("error_rate", "error rate"), ("aurc", "AURC"), ("excess_aurc", "excess AURC"))
    if name == "calibration":
        return each("calibration", ("ece", "ECE"), ("adaptive_ece", "adaptive ECE"), ("brier", "Brier"), ("nll", "NLL"))
    return [
        *order,
        ("tiers.cluster_balanced_accuracy", "clusters"),
        ("tiers.threshold_balanced_accuracy", "thresholds"),
    ]


def check_paths(records: Sequence[Record], paths: Sequence[str]) -> None:
    """A metric that no record has is a typing error, and would otherwise look like missing data."""
    known = dict.fromkeys(path for record in records for path in record.numbers)
    for path in paths:
        if path not in known:
            close = difflib.get_close_matches(path, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else "`abnn results show RECORD --all` lists them."
            raise InputError(explain("path", f"{path!r}, which is in no record", "the path of a metric", hint))


def mean_text(summary: SeedSummary, column: Column) -> str:
    """Mean ± sample standard deviation as the column wants it; a single run has no deviation."""
    parts = (summary.mean,) if summary.std is None else (summary.mean, summary.std)
    return " ± ".join(_fixed(part * column.scale, column.digits) for part in parts)


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown; all but the first ``left`` columns are numbers and lie to the right."""

    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(text.split()).replace('|', chr(92) + '|') for text in texts)} |"

    rule = f"|{'|'.join(['---'] * left + ['---:'] * (len(heads) - left))}|"
    return "\n".join([line(heads), rule, *map(line, rows)]) + "\n"


def update_between_markers(path: str | Path, marker: str, text: str) -> bool:
    """Put ``text`` between ``<!-- abnn:table MARKER -->`` and the next ``<!-- /abnn:table -->``; was anything changed?"""
    path = Path(path)
    start, end = f"<!-- abnn:table {marker} -->", "<!-- /abnn:table -->"
    if "abnn:table" in text:
        raise InputError(explain("text", "text with a table marker in it", "text without", "Pass the table alone."))
    try:
        content = path.read_bytes().decode()
    except FileNotFoundError:
        raise InputError(explain("path", f"{path}, which does not exist", "an existing text file")) from None
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error}); convert it first.") from None
    number = content.count(start)
    if number != 1:
        found = ", ".join(re.findall(r"<!-- abnn:table (.+?) -->", content)) or "none"
        fix = f"Put the lines {start} and {end} where the table belongs, once. Markers in the file: {found}."
        raise InputError(explain("marker", f"{marker!r}, {number} times in {path}", "a marker that is there once", fix))
    before, after = content.split(start)
    old, closing, rest = after.partition(end)
    if not closing or "<!-- abnn:table " in old:
        fix = f"Put the line {end} after the table."
        raise InputError(explain("marker", f"{marker!r} in {path} without an end", "both markers", fix))
    newline = "\r\n" if "\r\n" in content else "\n"
    lines = newline.join(["", "", *text.strip("\n").split("\n"), "", ""])
    updated = f"{before}{start}{lines}{end}{rest}"
    if updated == content:
        return False
    write_bytes(path, updated.encode())
    return True


def _groups(
    records: Sequence[Record], columns: Sequence[Column], by: str, rows: Sequence[str] | None
) -> dict[str, list[Record]]:
    """Records by label and, within a label, by seed, after checking that columns and rows exist and seeds are unique."""
    if not records:
        raise InputError(explain("records", "none", "at least one record", "Check the folder and the filters."))
    check_paths(records, [column.path for column in columns])
    labelled: dict[str, list[Record]] = {}
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


def _column_cells(column: Column, groups: dict[str, list[Record]]) -> list[Cell]:
    values = [
        [record.numbers[column.path] for record in group if column.path in record.numbers] for group in groups.values()
    ]
    summaries = [over_seeds(each) if each else None for each in values]
    shown = [None if each is None else _fixed(each.mean * column.scale, column.digits) for each in summaries]
    defined = [float(each) for each in shown if each is not None]
    best = {"higher": max, "lower": min}.get(column.better) if len(defined) > 1 else None
    cells = []
    for text, summary, group in zip(shown, summaries, groups.values(), strict=True):
        if text is None or summary is None:
            cells.append(Cell(MISSING, ("", "", "0")))
            continue
        raw_std = "" if summary.std is None else _raw(summary.std * column.scale)
        fewer = f" (n={summary.n})" if summary.n < len(group) else ""
        cells.append(
            Cell(
                mean_text(summary, column) + fewer,
                (_raw(summary.mean * column.scale), raw_std, str(summary.n)),
                best=best is not None and float(text) == best(defined),
            )
        )
    return cells


def _paired_cell(column: Column, records: Sequence[Record], label: str, against: str, by: str) -> Cell:
    test = paired(records, label, against, column.path, by)
    difference = test.mean_difference * column.scale
    sign = "+" if float(_fixed(difference, column.digits)) > 0 else ""
    text = f"{sign}{_fixed(difference, column.digits)} (p={test.p_value:.2g}, n={test.n})"
    return Cell(text, (_raw(difference), _raw(test.p_value), str(test.n)))


def _fixed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text


def _raw(value: float) -> str:
    """Ten significant digits: more than any metric deserves, fewer than the last bits in which processors differ."""
    return f"{value:.10g}"


def with_arrow(column: Column) -> str:
    return column.header + {"higher": " ↑", "lower": " ↓", "neither": ""}[column.better]


Heads = Sequence[tuple[str, list[str]]]
Body = Sequence[Sequence[Cell]]


def _writer(format: str) -> Callable[[Heads, Body], str]:
    writers = {"markdown": _markdown, "latex": _latex, "csv": _csv}
    if format not in writers:
        raise unknown("format", format, writers)
    return writers[format]


def _markdown(heads: Heads, body: Body) -> str:
    rows = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in body]
    return markdown_table([head for head, _ in heads], rows)


def _latex(heads: Heads, body: Body) -> str:
    def line(texts: Sequence[str]) -> str:
        return rf"{' & '.join(texts)} \\"

    rows = [[rf"\textbf{{{_escape(cell.text)}}}" if cell.best else _escape(cell.text) for cell in row] for row in body]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            line([_escape(head) for head, _ in heads]),
            r"\midrule",
            *map(line, rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _csv(heads: Heads, body: Body) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name for _, names in heads for name in names])
    writer.writerows([part for cell in row for part in cell.raw] for row in body)
    return buffer.getvalue()


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
