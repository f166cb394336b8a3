"""Tables from run records: mean and sample standard deviation over seeds, in Markdown.

The same records give the same bytes, in whatever order they come. Tables in documents stand between two markers and are
put there by `update_between_markers`, so that no number in them was ever typed.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from abnn.errors import FileFormatError, InputError, explain, unknown
from abnn.evaluate.evaluation import TIERS
from abnn.evaluate.records import Record
from abnn.files import write_bytes
from abnn.metrics import SeedSummary, over_seeds
from research.metrics import paired_test

MISSING = "–"
Groups = dict[str, list[Record]]
BETTER = ("higher", "lower", "neither")

_LOWER = ("ece", "adaptive_ece", "brier", "nll", "aurc", "augrc", "excess_aurc", "error_rate", "fpr_")
_THRESHOLDS = ("id_semi", "semi_full")
_VERDICTS = ("accept", "notice", "reject")
_NEITHER = ("mean_confidence", "optimal_aurc", "shuffled_", "kept_", "shuffles", *_VERDICTS, *_THRESHOLDS)
_RAW = ("brier", "nll", "shuffles", *_THRESHOLDS)

_ORDER = {
    "tiers.auroc_id_below_semi": "id < semi",
    "tiers.auroc_semi_below_full": "semi < full",
    "tiers.auroc_id_below_full": "id < full",
    "tiers.ordered_triples": "ordered triples",
}
PRESETS: dict[str, dict[str, str]] = {
    "overview": {
        "accuracy.SET": "SET accuracy",
        "detection.SET.auroc": "SET AUROC",
        "misclassification.SET.auroc": "SET errors AUROC",
        **{path: _ORDER[path] for path in ("tiers.auroc_semi_below_full", "tiers.ordered_triples")},
    },
    "detection": {
        "detection.SET.auroc": "SET AUROC",
        "detection.SET.aupr_in": "SET AUPR in",
        "detection.SET.aupr_out": "SET AUPR out",
        "detection.SET.detection_accuracy": "SET detection accuracy",
        "detection.SET.tnr_at_tpr95_id_positive": "SET TNR at 95 % TPR (ID)",
        "detection.SET.fpr_at_tpr95_ood_positive": "SET FPR at 95 % TPR (OOD)",
    },
    "tiers": {
        **_ORDER,
        "tiers.cluster_balanced_accuracy": "clusters",
        "tiers.threshold_balanced_accuracy": "thresholds",
    },
}
"""The usual metrics by path and header; one with SET stands for those of every set."""


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
    """Return a column for a metric of :mod:`abnn.evaluate.summary`: direction and unit follow from the metric's name."""
    leaf = path.rpartition(".")[2]
    if path.startswith("accuracy."):  # what follows is the name of a set, and says nothing
        return Column(header or path, path)
    if leaf.isdigit():  # a cell of a confusion matrix
        return Column(header or path, path, scale=1.0, better="neither")
    better = "neither" if leaf.startswith(_NEITHER) else "lower" if leaf.startswith(_LOWER) else "higher"
    scale, digits = (1.0, 3) if leaf.startswith(_RAW) else (100.0, 2 if "aurc" in leaf or "augrc" in leaf else 1)
    return Column(header or path, path, scale, digits, better)


def columns_from(text: str, records: Sequence[Record]) -> list[Column]:
    """Return the columns of one line: presets, metric paths and ``header=path``, separated by commas."""
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


def preset(name: str, records: Sequence[Record]) -> list[Column]:
    """Return the columns that ``name`` stands for, for the sets that occur in these records."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    sets = sorted(dict.fromkeys((TIERS.index(each.tier), each.name) for record in records for each in record.sets))
    families: dict[str, list[tuple[str, str]]] = {}
    for path, header in PRESETS[name].items():
        families.setdefault(path.partition(".")[0], []).append((path, header))
    columns = []
    for metrics in families.values():  # all metrics of one set side by side
        names = [each for _, each in sets] if "SET" in metrics[0][0] else [""]
        columns += [
            column_for(path.replace("SET", one), header.replace("SET", one))
            for one in names
            for path, header in metrics
        ]
    return [column for column in columns if any(column.path in record.numbers for record in records)]


def check_paths(records: Sequence[Record], paths: Sequence[str]) -> None:
    """Refuse a metric that no record has: it is a typing error, and would otherwise look like missing data."""
    known = dict.fromkeys(path for record in records for path in record.numbers)
    for path in paths:
        if path not in known:
            close = difflib.get_close_matches(path, known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f'The keys below "metrics" of {records[0].path}.'
            raise InputError(explain("path", f"{path!r}, which is in no record", "the path of a metric", hint))


def with_arrow(column: Column) -> str:
    """Return the header with the direction that is better."""
    return column.header + {"higher": " ↑", "lower": " ↓", "neither": ""}[column.better]


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
                fault = f"{one.path} and {other.path}, both {name!r} with seed {one.seed}"
                fix = "Filter by experiment or name."
                raise InputError(explain("records", fault, "one record for each row and seed", fix))
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
        fault = f"{name!r} with the seeds {sorted(ours)}, {against!r} with {sorted(theirs)}"
        fix = "Run both with the same seeds."
        raise InputError(explain("records", fault, "at least one seed that both have", fix))
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
        markers = ", ".join(re.findall(r"<!-- abnn:table (.+?) -->", content)) or "none"
        fix = f"Put the lines {start} and {end} where the table belongs, once. Markers in the file: {markers}."
        raise InputError(explain("marker", f"{marker!r}, {number} times in {path}", "a marker that is there once", fix))
    before, after = content.split(start)
    old, closing, rest = after.partition(end)
    if not closing or "<!-- abnn:table " in old:
        fix = f"Put the line {end} after the table."
        raise InputError(explain("marker", f"{marker!r} in {path} without an end", "both markers", fix))
    newline = "\r\n" if "\r\n" in content else "\n"
    lines = newline.join(["", "", *text.strip("\n").split("\n"), "", ""])
    updated = f"{before}{start}{lines}{end}{rest}"
    if updated != content:
        write_bytes(path, updated.encode())
    return updated != content
