"""Whether one method really beats another on the same seeds, and whether a score grows with the severity of outliers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from abnn.errors import InputError, at_least_one, explain
from abnn.metrics import Result
from abnn.metrics._arrays import ArrayLike, Floats, as_scores

EXACT_UP_TO = 16
_CHUNK = 10_000


@dataclass(frozen=True)
class PairedTest(Result):
    """``smallest_p`` is the least p-value that n seeds can give: with 5 it is 0.0625, so 5 seeds never reach 0.05."""

    mean_difference: float
    p_value: float
    smallest_p: float
    n: int
    exact: bool


def paired_test(first: ArrayLike, second: ArrayLike, draws: int = 100_000, seed: int = 0) -> PairedTest:
    """Two-sided sign-flip permutation test on first - second, one value of each per seed (Fisher, 1935).

    If the two methods were the same, each difference could as well have had the other sign. p is the share of all 2^n
    sign patterns whose mean difference is at least as far from zero as the observed one. Up to 16 seeds all patterns
    are counted; beyond, ``draws`` random patterns are, and the observed one is added so that p is never zero.
    """
    ours = as_scores(first, "first")
    n = len(ours)
    theirs = as_scores(second, "second", n, "first")
    differences = ours - theirs
    # Patterns that tie with the observed one may differ from it in the last digits of a sum of n terms.
    bound = abs(differences.sum()) - np.abs(differences).sum() * n * np.finfo(np.float64).eps
    number, seed = at_least_one("draws", draws), at_least_one("seed", seed, least=0)
    if exact := n <= EXACT_UP_TO:
        patterns = np.arange(2**n)[:, None] >> np.arange(n) & 1
        p_value, smallest = float(np.mean(_extreme(patterns, differences, bound))), 2.0 ** (1 - n)
    else:
        rng = np.random.default_rng(seed)
        sizes = [min(_CHUNK, number - start) for start in range(0, number, _CHUNK)]
        hits = sum(_extreme(rng.integers(0, 2, (size, n)), differences, bound).sum() for size in sizes)
        p_value, smallest = float((1 + hits) / (1 + number)), 1 / (1 + number)
    return PairedTest(float(differences.mean()), p_value, smallest, n, exact)


def _extreme(flips: np.ndarray, differences: Floats, bound: float) -> np.ndarray:
    return np.abs((1 - 2 * flips) @ differences) >= bound


def severity_correlation(scores: ArrayLike, severity: ArrayLike) -> float:
    """Spearman correlation of score and severity; equal values share their mean rank.

    Undefined, and an error, where one of the two is constant.
    """
    values = as_scores(scores, "scores")
    grades = as_scores(severity, "severity", len(values), "scores")
    for name, array in (("scores", values), ("severity", grades)):
        if np.all(array == array[0]):
            fault = f"{len(array)} equal values" if len(array) > 1 else "a single value"
            fix = "A correlation with a constant is undefined; check the model or grade the outliers."
            raise InputError(explain(name, fault, "at least two different values", fix))
    return float(spearmanr(values, grades).statistic)
