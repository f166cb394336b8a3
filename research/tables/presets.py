"""Columns by one line of text: presets, which name the usual metrics of every set, and metrics by path."""

from __future__ import annotations

from collections.abc import Sequence

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.evaluation import TIERS
from abnn.evaluate.records import Record
from research.tables.columns import Column, column_for

PRESETS = ("overview", "detection", "paper-grid", "misclassification", "selective", "calibration", "tiers")


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
