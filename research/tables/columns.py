"""Columns of a table: a metric of the records, its unit, its digits, and which direction is better."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.evaluation import TIERS
from abnn.evaluate.records import Record

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
