"""The paper's own detection numbers: scans over 200,000 thresholds, kept to compare with its tables and nothing else.

These are not the exact metrics of `abnn.metrics.detection`. The thresholds d run in equal steps from the least to the
largest confidence of both sets (half open), where confidence = -score, and ID (or success) is positive:

* TNR at 95 % TPR = 1 - mean of P(neg > d) over *all* d of the grid with 0.94 <= P(pos >= d) <= 0.96; 0 if there is none;
* AUROC = sum_i (FPR_{i-1} - FPR_i) TPR_i with TPR = P(pos >= d), FPR = P(neg > d), FPR before the first d = 1;
  negatives above the last d are dropped;
* detection accuracy = 1 - min_d [P(pos < d) + P(neg > d)] / 2, where a score equal to d is right on both sides;
* AUPR-in: increasing d, positives and negatives >= d; sum_i (R_{i-1} - R_i) P_i, plus R_last P_last;
* AUPR-out: decreasing d from the largest confidence, negatives count as hits if < d; the same sum, ended where
  nothing is below d.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, at_least_one, explain
from abnn.metrics import Result
from abnn.metrics._arrays import ArrayLike, Floats, Ints, as_scores
from abnn.metrics.detection import split_by_correctness

PAPER_STEPS = 200_000


@dataclass(frozen=True)
class PaperGridDetection(Result):
    """The five columns of the paper's detection tables, as fractions, in its order."""

    tnr_at_tpr95_window: float
    auroc: float
    detection_accuracy: float
    aupr_in: float
    aupr_out: float


@dataclass(frozen=True)
class PaperGridMisclassification(Result):
    """The five columns of the paper's misclassification tables, as fractions, in its order."""

    tnr_at_tpr95_window: float
    auroc: float
    detection_accuracy: float
    aupr_success: float
    aupr_error: float


def paper_grid_detection(id_scores: ArrayLike, ood_scores: ArrayLike, steps: int = PAPER_STEPS) -> PaperGridDetection:
    """The paper's five detection numbers for scores in this package's convention (larger = more uncertain)."""
    id_checked, ood_checked = as_scores(id_scores, "id_scores"), as_scores(ood_scores, "ood_scores")
    return PaperGridDetection(*_scan(-id_checked, -ood_checked, at_least_one("steps", steps)))


def paper_grid_misclassification(
    scores: ArrayLike, correct: ArrayLike, steps: int = PAPER_STEPS
) -> PaperGridMisclassification:
    """The paper's five misclassification numbers: right predictions positive, wrong ones negative."""
    right, wrong = split_by_correctness(scores, correct)
    return PaperGridMisclassification(*_scan(-right, -wrong, at_least_one("steps", steps)))


def _scan(positive: Floats, negative: Floats, steps: int) -> tuple[float, float, float, float, float]:
    positive, negative = np.sort(positive), np.sort(negative)
    start, end = min(positive[0], negative[0]), max(positive[-1], negative[-1])
    with np.errstate(over="ignore"):
        gap = (end - start) / steps
    if not 0 < gap < np.inf:
        fault = f"scores from {-end:g} to {-start:g}"
        fix = "The paper's grid does not exist here; use the exact metrics of abnn.metrics.detection."
        raise InputError(explain("scores", fault, f"a range that can be cut into {steps} steps", fix))
    rising = np.arange(start, end, gap)
    falling = np.arange(end, start, -gap)

    tpr = _at_least(positive, rising) / len(positive)
    fpr = _above(negative, rising) / len(negative)
    window = (tpr >= 0.94) & (tpr <= 0.96)
    return (
        float(1 - fpr[window].mean()) if window.any() else 0.0,
        float(np.sum(-np.diff(fpr, prepend=1.0) * tpr)),
        float(1 - np.min(((1 - tpr) + fpr) / 2)),
        _rectangles(_at_least(positive, rising), _at_least(negative, rising), len(positive)),
        _rectangles(_below(negative, falling), _below(positive, falling), len(negative)),
    )


def _rectangles(hits: Ints, false_alarms: Ints, total: int) -> float:
    """sum_i (R_{i-1} - R_i) P_i + R_last P_last over the thresholds that select anything, recall falling from 1."""
    some = hits + false_alarms > 0
    recall = hits[some] / total
    precision = hits[some] / (hits + false_alarms)[some]
    return float(np.sum(-np.diff(recall, prepend=1.0) * precision) + recall[-1] * precision[-1])


def _below(ordered: Floats, thresholds: Floats) -> Ints:
    return np.searchsorted(ordered, thresholds, side="left")


def _at_least(ordered: Floats, thresholds: Floats) -> Ints:
    return len(ordered) - _below(ordered, thresholds)


def _above(ordered: Floats, thresholds: Floats) -> Ints:
    return len(ordered) - np.searchsorted(ordered, thresholds, side="right")
