"""How sure is a number? Percentile bootstrap intervals over test inputs, mean and spread over trainings.

An interval covers the choice of *test inputs* for one trained model: how far could the number move with another sample of
the same size? It says nothing about training again with another seed; `over_seeds` does that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abnn.errors import InputError, at_least_one, explain
from abnn.metrics._arrays import ArrayLike, Result, as_scores, to_numpy


@dataclass(frozen=True)
class Interval(Result):
    """The value on the full sample, and the percentile interval around it."""

    estimate: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class SeedSummary(Result):
    """``std`` is the sample standard deviation (n - 1); a single run has none."""

    mean: float
    std: float | None
    n: int


def over_seeds(runs: ArrayLike) -> SeedSummary:
    """Mean and sample standard deviation of one number per run."""
    values = as_scores(runs, "runs")
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return SeedSummary(float(np.mean(values)), std, len(values))


def bootstrap(
    statistic: Callable[..., float | dict[Any, float] | Result],
    *groups: ArrayLike,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Any:
    """Intervals for ``statistic(*groups)`` whose groups are separate samples: detection(id, ood), tiers(id, semi, full).

    Returns an `Interval`; where the statistic returns a record or a dict, a dict with one for each number in it. Each
    group is resampled on its own with replacement and keeps its size. Columns that describe the same inputs belong into
    one group as an array of several columns: its rows are drawn whole. Where one kind of input is so rare that a
    resample could miss it, give it a group of its own.
    """
    if not groups:
        raise InputError(explain("groups", "none", "at least one array", "Pass the arguments of the statistic."))
    arrays = [_as_rows(group, f"group {number}") for number, group in enumerate(groups, start=1)]
    if not 0 < level < 1:
        raise InputError(explain("level", repr(level), "a number between 0 and 1", "Write 95 % as 0.95."))
    repeats = at_least_one("resamples", resamples, least=2)
    rng = np.random.default_rng(at_least_one("seed", seed, least=0))
    whole = statistic(*arrays)
    estimates = _numbers(whole)
    samples = []
    try:
        for _ in range(repeats):
            resampled = statistic(*(array[rng.integers(0, len(array), len(array))] for array in arrays))
            samples.append(list(_numbers(resampled).values()))
    except InputError as error:
        fix = "Use more data, or give every class a group of its own, which keeps its size."
        fault = f"a resample on which it is undefined ({error})"
        raise InputError(explain("statistic", fault, "a statistic defined on every resample", fix)) from error
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    rows = zip(estimates.values(), low, high, strict=True)
    intervals = [Interval(value, float(left), float(right), level) for value, left, right in rows]
    return dict(zip(estimates, intervals, strict=True)) if isinstance(whole, Result | dict) else intervals[0]


def _numbers(value: Any) -> dict[Any, float]:
    numbers = value.numbers() if isinstance(value, Result) else value
    if isinstance(numbers, dict) and numbers:
        return numbers
    if isinstance(value, int | float | np.number):
        return {"": float(value)}
    fault = f"a {type(value).__name__} as its result"
    raise InputError(explain("statistic", fault, "a function that returns a number, a dict or a record of metrics"))


def _as_rows(value: ArrayLike, argument: str) -> NDArray[Any]:
    accepted = "an array with one row per input"
    array = to_numpy(value, argument, accepted)
    if array.ndim == 0 or len(array) == 0:
        raise InputError(explain(argument, "no rows", accepted, "Check that the set has any inputs at all."))
    return array
