"""Metrics that mean what their names say: pure functions over score arrays, larger score = more uncertain.

Numpy arrays, torch tensors and lists go in; frozen records with ``to_dict`` come out. docs/metrics.md explains each
metric with its formula, which side is positive, and when it misleads.
"""

from abnn.metrics._arrays import Result
from abnn.metrics.bootstrap import Interval, SeedSummary, bootstrap, over_seeds
from abnn.metrics.calibration import calibration, reliability
from abnn.metrics.detection import auroc, detection, misclassification, roc_curve
from abnn.metrics.regression import gaussian_crps, gaussian_nll, regression
from abnn.metrics.selective import risk_coverage, selective
from abnn.metrics.tiers import TierThresholds, cluster_confusion, ordered_triples, tier_accuracy, tier_confusion, tiers

__all__ = ["Interval", "Result", "SeedSummary", "TierThresholds", "auroc", "bootstrap", "calibration"]
__all__ += ["cluster_confusion", "detection", "gaussian_crps", "gaussian_nll", "misclassification", "ordered_triples"]
__all__ += ["over_seeds", "regression", "reliability", "risk_coverage", "roc_curve", "selective", "tier_accuracy"]
__all__ += ["tier_confusion", "tiers"]
