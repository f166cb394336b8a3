"""What would be done with each input, from the two thresholds of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abnn.evaluation import Evaluation, SetResult
from abnn.report.texts import VERDICTS


def verdict_numbers(scores: np.ndarray, thresholds: tuple[float, float]) -> np.ndarray:
    """0 accept (score <= first), 1 notice (up to the second), 2 reject (above it)."""
    return np.searchsorted(np.asarray(thresholds, np.float64), np.asarray(scores, np.float64), side="left")


def verdict_counts(evaluation: Evaluation, sets: Sequence[SetResult]) -> np.ndarray:
    """How many inputs of all ``sets`` together are accepted, noticed and rejected."""
    assert evaluation.thresholds is not None  # callers leave models without thresholds out
    scores = np.concatenate([each.scores[evaluation.score] for each in sets])
    return np.bincount(verdict_numbers(scores, evaluation.thresholds), minlength=len(VERDICTS))


def verdict_shares(evaluation: Evaluation) -> list[tuple[SetResult, np.ndarray]]:
    """For each set the shares of accept, notice and reject."""
    return [(result, verdict_counts(evaluation, [result]) / len(result)) for result in evaluation.sets]
