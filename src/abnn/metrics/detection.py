"""Telling in-distribution inputs from outliers, or right predictions from wrong ones, by one score per input.

All numbers are fractions in [0, 1], exact for the given samples, and unchanged by any strictly increasing function of
the score. Ties are never broken by the order of the input: equal scores pass a threshold together.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Floats, Ints, Result, as_scores, scores_and_correct


@dataclass(frozen=True)
class Detection(Result):
    """The names say which side counts as positive, because the literature uses both under the same name.

    At 95 %, t is one of the scores of the positive side, and scores of the other side that equal it are missed, or false alarms.
    """

    auroc: float  # P(ood > id) + P(ood = id) / 2 for a random pair, whichever side is called positive
    aupr_in: float  # average precision with ID positive: accept if score <= t
    aupr_out: float  # average precision with OOD positive: alarm if score >= t
    detection_accuracy: float  # max over t of [P(id <= t) + P(ood > t)] / 2: the best balanced accuracy, at least 1/2
    tnr_at_tpr95_id_positive: float  # P(ood > t) at the smallest t with P(id <= t) >= 0.95
    fpr_at_tpr95_ood_positive: float  # P(id >= t) at the largest t with P(ood >= t) >= 0.95


@dataclass(frozen=True)
class Misclassification(Result):
    """The accuracy, and the numbers of `Detection` with success in the place of ID and error in the place of OOD."""

    accuracy: float
    auroc: float
    aupr_success: float
    aupr_error: float
    detection_accuracy: float
    tnr_at_tpr95_success_positive: float
    fpr_at_tpr95_error_positive: float


@dataclass(frozen=True, eq=False)
class RocCurve(Result):
    """Points of the ROC curve with OOD positive: an input counts as OOD if its score is >= ``threshold``."""

    threshold: Floats
    fpr: Floats
    tpr: Floats


def detection(id_scores: ArrayLike, ood_scores: ArrayLike) -> Detection:
    """All detection metrics, from one sort."""
    counts = _tally(id_scores, ood_scores)
    accepted, alarms = counts.at_most / counts.sizes[:, None], counts.at_least / counts.sizes[:, None]
    # count / size is correctly rounded, and so is the literal 0.95: k of n with k / n = 0.95 exactly compares as equal.
    keeping, catching = int(np.argmax(accepted[0] >= 0.95)), int(np.flatnonzero(alarms[1] >= 0.95)[-1])
    return Detection(
        auroc=auroc_of(counts),
        aupr_in=_average_precision(counts.at_most[0], counts.at_most[1]),
        aupr_out=_average_precision(counts.at_least[1, ::-1], counts.at_least[0, ::-1]),
        detection_accuracy=float(max(0.5, np.max(accepted[0] + (1 - accepted[1])) / 2)),
        tnr_at_tpr95_id_positive=float((counts.sizes[1] - counts.at_most[1, keeping]) / counts.sizes[1]),
        fpr_at_tpr95_ood_positive=float(counts.at_least[0, catching] / counts.sizes[0]),
    )


def auroc(id_scores: ArrayLike, ood_scores: ArrayLike) -> float:
    """P(ood > id) + P(ood = id) / 2 for a random pair."""
    return auroc_of(_tally(id_scores, ood_scores))


def roc_curve(id_scores: ArrayLike, ood_scores: ArrayLike) -> RocCurve:
    """All distinct points of the ROC curve with OOD positive, from the loosest threshold (1, 1) down to (0, 0).

    The last threshold lies just above every score. Straight lines between the points give the area ``auroc``.
    """
    counts = _tally(id_scores, ood_scores)
    rates = np.append(counts.at_least / counts.sizes[:, None], [[0.0], [0.0]], axis=1)
    return RocCurve(np.append(counts.values, np.nextafter(counts.values[-1], np.inf)), fpr=rates[0], tpr=rates[1])


def misclassification(scores: ArrayLike, correct: ArrayLike) -> Misclassification:
    """How well the score tells wrong predictions (which should score high) from right ones.

    Two models are comparable only at similar accuracy: each is tested on its own errors, and ``aupr_error`` of a
    useless score equals the error rate.
    """
    right, wrong = split_by_correctness(scores, correct)
    return Misclassification(len(right) / (len(right) + len(wrong)), *astuple(detection(right, wrong)))


def split_by_correctness(scores: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """The scores of the right and of the wrong predictions; both must exist."""
    values, right = scores_and_correct(scores, correct)
    if np.all(right) or not np.any(right):
        fault = f"{len(right)} predictions that are all {'right' if right[0] else 'wrong'}"
        fix = "Misclassification detection is undefined here; report the accuracy alone, or use more data."
        raise InputError(explain("correct", fault, "at least one right and one wrong prediction", fix))
    return values[right], values[~right]


class Tally(NamedTuple):
    """One sort for all rank metrics: counts of several groups at the distinct values of all of them together.

    ``at_most[g, k]`` is the number of members of group g with a score <= ``values[k]``; so too for those below, at and at
    least there. Every threshold that separates the groups differently corresponds to one k, or lies below all values, so
    nothing is lost and ties stay together.
    """

    values: Floats
    sizes: Ints
    at_most: Ints
    below: Ints
    at: Ints
    at_least: Ints


def tally(*groups: Floats) -> Tally:
    """Count every group at the distinct values of all groups, in O(n log n)."""
    ordered = [np.sort(group) for group in groups]
    pooled = np.sort(np.concatenate(ordered), kind="stable")  # a merge: the parts are sorted already
    values = pooled[np.append(True, pooled[1:] != pooled[:-1])]
    at_most = np.stack([np.searchsorted(group, values, side="right") for group in ordered]).astype(np.int64)
    at = np.diff(at_most, axis=1, prepend=0)
    below, sizes = at_most - at, at_most[:, -1]
    return Tally(values, sizes, at_most, below, at, sizes[:, None] - below)


def auroc_of(counts: Tally, low: int = 0, high: int = 1) -> float:
    """P(high > low) + P(high = low) / 2 of two groups of a tally, summed in whole numbers."""
    doubled = np.sum(counts.at[high] * (counts.below[low] + counts.at_most[low]))
    return float(doubled / (2 * counts.sizes[low] * counts.sizes[high]))


def _tally(id_scores: ArrayLike, ood_scores: ArrayLike) -> Tally:
    return tally(as_scores(id_scores, "id_scores"), as_scores(ood_scores, "ood_scores"))


def _average_precision(true_positives: Ints, false_positives: Ints) -> float:
    """sum_k (R_k - R_{k-1}) P_k over thresholds from the strictest to the loosest."""
    gained = np.diff(true_positives, prepend=0)
    precision = true_positives / (true_positives + false_positives)
    return float(np.sum(gained * precision) / true_positives[-1])
