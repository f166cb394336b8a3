"""Percentile bootstrap intervals for any metric: how far could the number move with another sample of the same size?

The interval covers the choice of *test inputs* for one trained model. It says nothing about training again with another
seed; `abnn.metrics.seeds` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Result, as_count, as_fraction, to_numpy

Draw = Callable[[np.random.Generator], Sequence[NDArray[Any]]]


@dataclass(frozen=True)
class Interval(Result):
    """The value on the full sample, and the percentile interval around it."""

    estimate: float
    low: float
    high: float
    level: float


def bootstrap_groups(
    statistic: Callable[..., float | dict[Any, float] | Result],
    *groups: ArrayLike,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Any:
    """Intervals for ``statistic(*groups)`` whose groups are separate samples: detection(id, ood), tiers(id, semi, full).

    Returns an `Interval`; where the statistic returns a record or a dict, a dict with one for each number in it. Each
    group is resampled on its own with replacement and keeps its size. Groups may have several columns, so that the
    difference of two methods on the same inputs is resampled jointly.
    """
    arrays = _all_rows(groups, "group")

    def draw(rng: np.random.Generator) -> list[NDArray[Any]]:
        return [array[rng.integers(0, len(array), len(array))] for array in arrays]

    return _intervals(statistic, arrays, draw, resamples, level, seed)


def bootstrap_rows(
    statistic: Callable[..., float | dict[Any, float] | Result],
    *columns: ArrayLike,
    strata: ArrayLike | None = None,
    resamples: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Any:
    """Intervals for ``statistic(*columns)`` whose columns describe the same inputs: misclassification(scores, correct).

    Returns what `bootstrap_groups` does. Inputs are resampled with replacement, all columns together. With ``strata`` (one
    value per input, for instance ``correct``) each stratum keeps its size; that is needed where one class is so rare that
    a resample could miss it.
    """
    arrays = _all_rows(columns, "column")
    labels = np.zeros(len(arrays[0])) if strata is None else _rows(strata, "strata")
    for number, array in enumerate([*arrays[1:], labels], start=2):
        if len(array) != len(arrays[0]):
            name = "strata" if array is labels else f"column {number}"
            fix = "All columns must describe the same inputs; for separate samples use bootstrap_groups."
            raise InputError(explain(name, f"{len(array)} rows", f"{len(arrays[0])}, as many as column 1", fix))
    members = [np.flatnonzero(labels == value) for value in np.unique(labels)]

    def draw(rng: np.random.Generator) -> list[NDArray[Any]]:
        rows = np.concatenate([stratum[rng.integers(0, len(stratum), len(stratum))] for stratum in members])
        return [array[rows] for array in arrays]

    return _intervals(statistic, arrays, draw, resamples, level, seed)


def _intervals(
    statistic: Callable[..., Any], arrays: Sequence[NDArray[Any]], draw: Draw, resamples: int, level: float, seed: int
) -> Interval | dict[str, Interval]:
    repeats, level = as_count(resamples, "resamples", at_least=2), as_fraction(level, "level")
    rng = np.random.default_rng(as_count(seed, "seed", at_least=0))
    whole = statistic(*arrays)
    estimates = _numbers(whole)
    try:
        samples = np.array([list(_numbers(statistic(*draw(rng))).values()) for _ in range(repeats)])
    except InputError as error:
        fix = "Use more data, or pass `strata` to bootstrap_rows so that every class keeps its size."
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


def _rows(value: ArrayLike, argument: str) -> NDArray[Any]:
    accepted = "an array with one row per input"
    array = to_numpy(value, argument, accepted)
    if array.ndim == 0 or len(array) == 0:
        raise InputError(explain(argument, "no rows", accepted, "Check that the set has any inputs at all."))
    return array


def _all_rows(values: Sequence[ArrayLike], kind: str) -> list[NDArray[Any]]:
    if not values:
        raise InputError(explain(f"{kind}s", "none", "at least one array", "Pass the arguments of the statistic."))
    return [_rows(value, f"{kind} {number}") for number, value in enumerate(values, start=1)]
