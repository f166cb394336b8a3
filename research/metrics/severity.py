"""Whether a score grows with the severity of outliers."""

from __future__ import annotations

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Floats, as_scores


def severity_correlation(scores: ArrayLike, severity: ArrayLike) -> float:
    """Spearman correlation of score and severity: Pearson correlation of the ranks, equal values sharing their mean rank.

    Undefined, and an error, where one of the two is constant.
    """
    values = as_scores(scores, "scores")
    grades = as_scores(severity, "severity", len(values), "scores")
    for name, array in (("scores", values), ("severity", grades)):
        if np.all(array == array[0]):
            given = f"{len(array)} equal values" if len(array) > 1 else "a single value"
            fix = "A correlation with a constant is undefined; check the model or grade the outliers."
            raise InputError(explain(name, given, "at least two different values", fix))
    first, second = _centred_ranks(values), _centred_ranks(grades)
    return float(np.clip(first @ second / np.sqrt((first @ first) * (second @ second)), -1, 1))


def _centred_ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2 - (len(values) + 1) / 2)[inverse]
