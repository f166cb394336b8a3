"""Numbers over repeated trainings: mean and spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Floats, Result, as_scores


@dataclass(frozen=True)
class SeedSummary(Result):
    """``std`` is the sample standard deviation (n - 1); a single run has none."""

    mean: float
    std: float | None
    n: int


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


def _summary(values: Floats) -> SeedSummary:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return SeedSummary(float(np.mean(values)), std, len(values))
