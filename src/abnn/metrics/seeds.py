"""Numbers over repeated trainings: mean, spread, and whether one method really beats another on the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Floats, as_count, as_scores, check_same_length
from abnn.metrics._results import Result

EXACT_UP_TO = 16
_CHUNK = 10_000


@dataclass(frozen=True)
class SeedSummary(Result):
    """``std`` is the sample standard deviation (n - 1); a single run has none."""

    mean: float
    std: float | None
    n: int


@dataclass(frozen=True)
class PairedTest(Result):
    """``smallest_p`` is the least p-value that n seeds can give: with 5 it is 0.0625, so 5 seeds never reach 0.05."""

    mean_difference: float
    p_value: float
    smallest_p: float
    n: int
    exact: bool


@overload
def over_seeds(runs: Sequence[Result]) -> dict[str, SeedSummary]: ...
@overload
def over_seeds(runs: ArrayLike) -> SeedSummary: ...
def over_seeds(runs: Any) -> SeedSummary | dict[str, SeedSummary]:
    """Mean and sample standard deviation of one number per run, or of every number in one record per run."""
    if not isinstance(runs, list | tuple) or not any(isinstance(run, Result) for run in runs):
        return _summary(as_scores(runs, "runs"))
    names = {tuple(run.numbers()) if isinstance(run, Result) else () for run in runs}
    if len(names) > 1:
        fix = "Summarise one kind of record at a time, all made with the same options."
        raise InputError(explain("runs", "records with different numbers in them", "records of one kind", fix))
    rows = [run.numbers() for run in runs]
    return {name: _summary(np.array([row[name] for row in rows])) for name in rows[0]}


def paired_test(first: ArrayLike, second: ArrayLike, draws: int = 100_000, seed: int = 0) -> PairedTest:
    """Two-sided sign-flip permutation test on first - second, one value of each per seed (Fisher, 1935).

    If the two methods were the same, each difference could as well have had the other sign. p is the share of all 2^n
    sign patterns whose mean difference is at least as far from zero as the observed one. Up to 16 seeds all patterns
    are counted; beyond, ``draws`` random patterns are, and the observed one is added so that p is never zero.
    """
    ours, theirs = as_scores(first, "first"), as_scores(second, "second")
    n = len(ours)
    check_same_length(len(theirs), "second", n, "first")
    differences = ours - theirs
    # Patterns that tie with the observed one may differ from it in the last digits of a sum of n terms.
    bound = abs(differences.sum()) - np.abs(differences).sum() * n * np.finfo(np.float64).eps
    number, seed = as_count(draws, "draws"), as_count(seed, "seed", at_least=0)
    if exact := n <= EXACT_UP_TO:
        patterns = np.arange(2**n)[:, None] >> np.arange(n) & 1
        p_value, smallest = float(np.mean(_extreme(patterns, differences, bound))), 2.0 ** (1 - n)
    else:
        rng = np.random.default_rng(seed)
        sizes = [min(_CHUNK, number - start) for start in range(0, number, _CHUNK)]
        hits = sum(_extreme(rng.integers(0, 2, (size, n)), differences, bound).sum() for size in sizes)
        p_value, smallest = float((1 + hits) / (1 + number)), 1 / (1 + number)
    return PairedTest(float(differences.mean()), p_value, smallest, n, exact)


def _summary(values: Floats) -> SeedSummary:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return SeedSummary(float(np.mean(values)), std, len(values))


def _extreme(flips: np.ndarray, differences: Floats, bound: float) -> np.ndarray:
    return np.abs((1 - 2 * flips) @ differences) >= bound
