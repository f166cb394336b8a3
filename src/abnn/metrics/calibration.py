"""Do the probabilities mean what they say? Calibration of the predicted class, and proper scores of the whole row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abnn.errors import at_least_one
from abnn.metrics._arrays import ArrayLike, Floats, Ints, Result, as_booleans, as_confidences, rows_and_labels

DEFAULT_BINS = 15
LEAST_PROBABILITY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Calibration(Result):
    """How far probabilities are from what comes true."""

    accuracy: float
    mean_confidence: float
    ece: float  # sum_b (n_b / n) |accuracy_b - confidence_b| over bins of equal width (Guo et al., 2017)
    adaptive_ece: float  # the same sum over bins of equal count, which follow the confidences to where they are
    brier: float  # mean over inputs of sum_k (p_k - [k is the label])^2: 0 at best, 2 at worst
    nll: float  # mean of -log p(label) in nats; p below 2.2e-16 counts as that, so one input adds at most 36.04


@dataclass(frozen=True, eq=False)
class Reliability(Result):
    """A reliability diagram: for each bin that holds anything, its range, its means and its number of inputs."""

    lower: Floats
    upper: Floats
    confidence: Floats
    accuracy: Floats
    count: Ints

    @property
    def calibration_error(self) -> float:
        """sum over bins of (share of inputs) x |accuracy - confidence|."""
        return float(np.sum(self.count * np.abs(self.accuracy - self.confidence)) / np.sum(self.count))


def calibration(probs: ArrayLike, labels: ArrayLike, bins: int = DEFAULT_BINS) -> Calibration:
    """All calibration metrics of class probabilities of shape (inputs, classes)."""
    rows, truth = rows_and_labels(probs, labels)
    confidence, correct = rows.max(axis=1), rows.argmax(axis=1) == truth
    of_label = rows[np.arange(len(rows)), truth]
    return Calibration(
        accuracy=float(np.mean(correct)),
        mean_confidence=float(np.mean(confidence)),
        ece=reliability(confidence, correct, bins).calibration_error,
        adaptive_ece=reliability(confidence, correct, bins, equal_mass=True).calibration_error,
        brier=float(np.mean(np.sum(rows**2, axis=1) - of_label**2 + (1 - of_label) ** 2)),
        nll=float(np.mean(-np.log(np.maximum(of_label, LEAST_PROBABILITY)))),
    )


def reliability(
    confidence: ArrayLike, correct: ArrayLike, bins: int = DEFAULT_BINS, equal_mass: bool = False
) -> Reliability:
    """Accuracy and mean confidence per bin of confidence; bins without inputs are left out.

    Equal width: bins ((b - 1) / bins, b / bins], the first with 0. Equal mass: the sorted inputs are cut into runs whose
    lengths differ by at most one. A cut may fall among equal confidences; then each of these counts with the mean
    accuracy of all of them, so that the order of the input does not matter.
    """
    values = as_confidences(confidence, "confidence")
    right = as_booleans(correct, "correct", len(values), "confidence").astype(np.float64)
    number = at_least_one("bins", bins)
    if not equal_mass:
        edges = np.linspace(0, 1, number + 1)
        index = np.maximum(np.searchsorted(edges, values, side="left") - 1, 0)
        count = np.bincount(index, minlength=number)
        used = np.flatnonzero(count)
        means, shares = (np.bincount(index, each, number)[used] / count[used] for each in (values, right))
        return Reliability(edges[used], edges[used + 1], means, shares, count[used])
    distinct, inverse, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ordered, expected = np.repeat(distinct, sizes), np.repeat(np.bincount(inverse, right) / sizes, sizes)
    cuts = np.unique(np.arange(number + 1) * len(ordered) // number)  # unique: more bins than inputs leave empty runs
    first, last, count = cuts[:-1], cuts[1:] - 1, np.diff(cuts)
    means, shares = (np.add.reduceat(each, first) / count for each in (ordered, expected))
    return Reliability(ordered[first], ordered[last], means, shares, count)
