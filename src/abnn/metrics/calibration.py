"""Do the probabilities mean what they say? Calibration of the predicted class, and proper scores of the whole row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import (
    ArrayLike,
    Bools,
    Floats,
    Ints,
    as_booleans,
    as_confidences,
    as_count,
    as_labels,
    as_probabilities,
)
from abnn.metrics._results import Result

DEFAULT_BINS = 15
_LEAST_PROBABILITY = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Calibration(Result):
    """``ece`` has bins of equal width, ``adaptive_ece`` bins of equal count."""

    accuracy: float
    mean_confidence: float
    ece: float
    adaptive_ece: float
    brier: float
    nll: float


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
    rows, truth = _rows_and_truth(probs, labels)
    confidence, correct = _top_label(rows, truth)
    return Calibration(
        accuracy=float(np.mean(correct)),
        mean_confidence=float(np.mean(confidence)),
        ece=expected_calibration_error(confidence, correct, bins),
        adaptive_ece=adaptive_calibration_error(confidence, correct, bins),
        brier=_brier(rows, truth),
        nll=_nll(rows, truth),
    )


def top_label(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Bools]:
    """The probability of the predicted class, and whether that class is right (the first of equally probable ones)."""
    return _top_label(*_rows_and_truth(probs, labels))


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = DEFAULT_BINS) -> float:
    """ECE over bins of equal width, sum_b (n_b / n) |accuracy_b - confidence_b| (Guo et al., 2017)."""
    return reliability(confidence, correct, bins).calibration_error


def adaptive_calibration_error(confidence: ArrayLike, correct: ArrayLike, bins: int = DEFAULT_BINS) -> float:
    """The same sum over bins of equal count, which follow the confidences to where they are."""
    return reliability(confidence, correct, bins, equal_mass=True).calibration_error


def reliability(
    confidence: ArrayLike, correct: ArrayLike, bins: int = DEFAULT_BINS, equal_mass: bool = False
) -> Reliability:
    """Accuracy and mean confidence per bin of confidence; bins without inputs are left out.

    Equal width: bins ((b - 1) / bins, b / bins], the first with 0. Equal mass: the sorted inputs are cut into runs whose
    lengths differ by at most one. A cut may fall among equal confidences; then each of these counts with the mean
    accuracy of all of them, so that the order of the input does not matter.
    """
    values = as_confidences(confidence, "confidence")
    right = as_booleans(correct, "correct", len(values), "confidence")
    number = as_count(bins, "bins")
    return _equal_mass(values, right, number) if equal_mass else _equal_width(values, right, number)


def brier_score(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean over inputs of sum_k (p_k - [k is the label])^2: 0 at best, 2 at worst."""
    return _brier(*_rows_and_truth(probs, labels))


def negative_log_likelihood(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean of -log p(label) in nats; probabilities below 2.2e-16 count as that, so one input adds at most 36.04."""
    return _nll(*_rows_and_truth(probs, labels))


def _rows_and_truth(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    rows = as_probabilities(probs, "probs")
    truth = as_labels(labels, "labels", len(rows), "probs has rows")
    if truth.max() >= rows.shape[1]:
        given = f"the class {truth.max()}"
        fix = f"probs has {rows.shape[1]} columns; check that both come from the same classes."
        raise InputError(explain("labels", given, f"class numbers from 0 to {rows.shape[1] - 1}", fix))
    return rows, truth


def _top_label(rows: Floats, truth: Ints) -> tuple[Floats, Bools]:
    return rows.max(axis=1), rows.argmax(axis=1) == truth


def _brier(rows: Floats, truth: Ints) -> float:
    of_label = rows[np.arange(len(rows)), truth]
    return float(np.mean(np.sum(rows**2, axis=1) - of_label**2 + (1 - of_label) ** 2))


def _nll(rows: Floats, truth: Ints) -> float:
    of_label = rows[np.arange(len(rows)), truth]
    return float(np.mean(-np.log(np.maximum(of_label, _LEAST_PROBABILITY))))


def _equal_width(confidence: Floats, right: Bools, bins: int) -> Reliability:
    edges = np.linspace(0, 1, bins + 1)
    index = np.maximum(np.searchsorted(edges, confidence, side="left") - 1, 0)
    count = np.bincount(index, minlength=bins)
    used = np.flatnonzero(count)
    return Reliability(
        lower=edges[used],
        upper=edges[used + 1],
        confidence=np.bincount(index, confidence, bins)[used] / count[used],
        accuracy=np.bincount(index, right, bins)[used] / count[used],
        count=count[used],
    )


def _equal_mass(confidence: Floats, right: Bools, bins: int) -> Reliability:
    distinct, inverse, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    expected = np.repeat(np.bincount(inverse, right) / sizes, sizes)
    ordered = np.repeat(distinct, sizes)
    edges = np.unique(np.arange(bins + 1) * len(ordered) // bins)  # unique: more bins than inputs leave empty runs
    count = np.diff(edges)
    return Reliability(
        lower=ordered[edges[:-1]],
        upper=ordered[edges[1:] - 1],
        confidence=np.add.reduceat(ordered, edges[:-1]) / count,
        accuracy=np.add.reduceat(expected, edges[:-1]) / count,
        count=count,
    )
