"""Telling in-distribution inputs from outliers by one score per input (larger = more uncertain = more of an outlier).

All numbers are fractions in [0, 1], exact for the given samples, and unchanged by any strictly increasing function of
the score. Ties are never broken by the order of the input: equal scores pass a threshold together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abnn.metrics._arrays import ArrayLike, Floats, Ints, Result, as_fraction, as_scores
from abnn.metrics._tally import Tally, tally


@dataclass(frozen=True)
class Detection(Result):
    """The names say which side counts as positive, because the literature uses both under the same name."""

    auroc: float
    aupr_in: float
    aupr_out: float
    detection_accuracy: float
    tnr_at_tpr95_id_positive: float
    fpr_at_tpr95_ood_positive: float


@dataclass(frozen=True, eq=False)
class RocCurve(Result):
    """Points of the ROC curve with OOD positive: an input counts as OOD if its score is >= ``threshold``."""

    threshold: Floats
    fpr: Floats
    tpr: Floats


def detection(id_scores: ArrayLike, ood_scores: ArrayLike) -> Detection:
    """All detection metrics from one sort; the functions below say what each of them is."""
    counts = _tally(id_scores, ood_scores)
    accepted = counts.at_most / counts.sizes[:, None]
    return Detection(
        auroc=auroc_of(counts),
        aupr_in=_average_precision(counts.at_most[0], counts.at_most[1]),
        aupr_out=_average_precision(counts.at_least[1, ::-1], counts.at_least[0, ::-1]),
        detection_accuracy=float(max(0.5, np.max(accepted[0] + (1 - accepted[1])) / 2)),
        tnr_at_tpr95_id_positive=_tnr_at_tpr(counts, 0.95),
        fpr_at_tpr95_ood_positive=_fpr_at_tpr(counts, 0.95),
    )


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """P(ood > id) + P(ood = id) / 2 for a random pair. The same whichever side is called positive."""
    return auroc_of(_tally(id_scores, ood_scores))


def aupr_in(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Average precision with **ID positive**: accept if score <= t, sum over distinct t of precision x recall gained."""
    return detection(id_scores, ood_scores).aupr_in


def aupr_out(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """Average precision with **OOD positive**: alarm if score >= t, sum over distinct t of precision x recall gained."""
    return detection(id_scores, ood_scores).aupr_out


def detection_accuracy(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """max over all t of [P(id <= t) + P(ood > t)] / 2: the best balanced accuracy, at least 1/2."""
    return detection(id_scores, ood_scores).detection_accuracy


def tnr_at_tpr_id_positive(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """P(ood > t) at the smallest t with P(id <= t) >= ``tpr``: the share of OOD refused while ``tpr`` of ID is kept.

    On the confidence scale (-score) this t is the largest threshold at which the true positive rate of ID is still at
    least ``tpr``. t is always one of the ID scores; an OOD score equal to t is accepted, so it counts as missed.
    """
    return _tnr_at_tpr(_tally(id_scores, ood_scores), as_fraction(tpr, "tpr"))


def fpr_at_tpr_ood_positive(id_scores: ArrayLike, ood_scores: ArrayLike, tpr: float = 0.95) -> float:
    """P(id >= t) at the largest t with P(ood >= t) >= ``tpr``: the share of ID refused while ``tpr`` of OOD is caught.

    t is always one of the OOD scores; an ID score equal to t is refused, so it counts as a false alarm.
    """
    return _fpr_at_tpr(_tally(id_scores, ood_scores), as_fraction(tpr, "tpr"))


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> RocCurve:
    """All distinct points of the ROC curve with OOD positive, from the loosest threshold (1, 1) down to (0, 0).

    The last threshold lies just above every score. Straight lines between the points give the area ``auroc``.
    """
    counts = _tally(id_scores, ood_scores)
    rates = np.append(counts.at_least / counts.sizes[:, None], [[0.0], [0.0]], axis=1)
    return RocCurve(np.append(counts.values, np.nextafter(counts.values[-1], np.inf)), fpr=rates[0], tpr=rates[1])


def auroc_of(counts: Tally) -> float:
    """P(second > first) + P(second = first) / 2 of the two groups of a tally, summed in whole numbers."""
    doubled = np.sum(counts.at[1] * (counts.below[0] + counts.at_most[0]))
    return float(doubled / (2 * counts.sizes[0] * counts.sizes[1]))


def _tally(id_scores: ArrayLike, ood_scores: ArrayLike) -> Tally:
    return tally(as_scores(id_scores, "id_scores"), as_scores(ood_scores, "ood_scores"))


def _average_precision(true_positives: Ints, false_positives: Ints) -> float:
    """sum_k (R_k - R_{k-1}) P_k over thresholds from the strictest to the loosest."""
    gained = np.diff(true_positives, prepend=0)
    precision = true_positives / (true_positives + false_positives)
    return float(np.sum(gained * precision) / true_positives[-1])


# count / size is correctly rounded, and so is the literal 0.95: k of n with k / n = 0.95 exactly compares as equal.
def _tnr_at_tpr(counts: Tally, tpr: float) -> float:
    first = int(np.argmax(counts.at_most[0] / counts.sizes[0] >= tpr))
    return float((counts.sizes[1] - counts.at_most[1, first]) / counts.sizes[1])


def _fpr_at_tpr(counts: Tally, tpr: float) -> float:
    last = int(np.flatnonzero(counts.at_least[1] / counts.sizes[1] >= tpr)[-1])
    return float(counts.at_least[0, last] / counts.sizes[0])
