"""Metrics that mean what their names say: pure functions over score arrays, larger score = more uncertain.

Numpy arrays, torch tensors and lists go in; frozen records with ``to_dict`` come out. docs/metrics.md explains each
metric with its formula, which side is positive, and when it misleads. The ``...Metric`` classes of
`abnn.metrics.streaming` collect batches in the way of torchmetrics.
"""

from typing import TYPE_CHECKING, Any

from abnn.metrics._arrays import Result
from abnn.metrics.bootstrap import Interval, bootstrap_groups, bootstrap_rows
from abnn.metrics.calibration import (
    adaptive_calibration_error,
    brier_score,
    calibration,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    top_label,
)
from abnn.metrics.detection import (
    aupr_in,
    aupr_out,
    auroc,
    detection,
    detection_accuracy,
    fpr_at_tpr_ood_positive,
    roc_curve,
    tnr_at_tpr_id_positive,
)
from abnn.metrics.misclassification import misclassification
from abnn.metrics.seeds import SeedSummary, over_seeds
from abnn.metrics.selective import augrc, aurc, excess_aurc, risk_coverage, selective
from abnn.metrics.tiers import (
    TierThresholds,
    choose_tier_thresholds,
    cluster_confusion,
    ordered_triples,
    tier_accuracy,
    tier_confusion,
    tiers,
)

if TYPE_CHECKING:
    from abnn.metrics.streaming import (
        CalibrationMetric,
        DetectionMetric,
        MisclassificationMetric,
        SelectiveMetric,
        TierMetric,
    )

__all__ = [
    "CalibrationMetric",
    "DetectionMetric",
    "Interval",
    "MisclassificationMetric",
    "Result",
    "SeedSummary",
    "SelectiveMetric",
    "TierMetric",
    "TierThresholds",
    "adaptive_calibration_error",
    "augrc",
    "aupr_in",
    "aupr_out",
    "aurc",
    "auroc",
    "bootstrap_groups",
    "bootstrap_rows",
    "brier_score",
    "calibration",
    "choose_tier_thresholds",
    "cluster_confusion",
    "detection",
    "detection_accuracy",
    "excess_aurc",
    "expected_calibration_error",
    "fpr_at_tpr_ood_positive",
    "misclassification",
    "negative_log_likelihood",
    "ordered_triples",
    "over_seeds",
    "reliability",
    "risk_coverage",
    "roc_curve",
    "selective",
    "tier_accuracy",
    "tier_confusion",
    "tiers",
    "tnr_at_tpr_id_positive",
    "top_label",
]


def __getattr__(name: str) -> Any:
    # torchmetrics takes seconds to import, and whoever calls a function on two arrays should not wait for it
    if name in __all__:  # the others are here already
        from abnn.metrics import streaming

        return getattr(streaming, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
