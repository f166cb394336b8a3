"""What would be done with each input, from the two thresholds of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.report.texts import VERDICTS


def verdict_counts(evaluation: Evaluation, sets: Sequence[SetResult]) -> np.ndarray:
    """How many inputs of all ``sets`` together are accepted, noticed and rejected."""
    return np.bincount(np.concatenate([evaluation.levels(each) for each in sets]), minlength=len(VERDICTS))


def verdict_shares(evaluation: Evaluation) -> list[tuple[SetResult, np.ndarray]]:
    """For each set the shares of accept, notice and reject."""
    return [(result, verdict_counts(evaluation, [result]) / len(result)) for result in evaluation.sets]
