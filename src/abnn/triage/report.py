"""Verdicts on data whose tier is known, and whether the promise holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abnn.decisions import check_promise
from abnn.errors import InputError, explain
from abnn.triage.thresholds import conformal_quantile, conformal_rank, least_count
from abnn.triage.triage import Triage


@dataclass(frozen=True)
class Row:
    """One set, or one tier with all its sets.

    shares, counts  of accepted, noticed and rejected inputs
    accuracy        among each of these; None where there are none, or where an input has no class
    """

    name: str
    tier: str
    inputs: int
    shares: tuple[float, ...]
    counts: tuple[int, ...]
    accuracy: tuple[float | None, ...]


@dataclass(frozen=True)
class Report:
    """Verdicts of one model, by set and by tier."""

    sets: tuple[Row, ...]
    tiers: tuple[Row, ...]


def report(triage: Triage, evaluation: Any) -> Report:
    """Return the verdicts of ``triage`` on the sets of an evaluation of the same model.

    evaluation  an :class:`abnn.evaluate.evaluation.Evaluation`
    """
    sets = evaluation.sets
    if not sets or any(triage.score not in each.scores for each in sets):
        names = ", ".join(sets[0].scores) if sets else "no sets"
        raise InputError(explain("evaluation", f"scores {names}", f"sets with the score {triage.score!r}"))
    tiers = {each.tier: [other for other in sets if other.tier == each.tier] for each in sets}
    by_set = tuple(_row(triage, each.name, [each]) for each in sets)
    return Report(by_set, tuple(_row(triage, tier, members) for tier, members in tiers.items()))


def _row(triage: Triage, name: str, sets: Sequence[Any]) -> Row:
    columns = zip(*((each.scores[triage.score], each.correct, each.predicted) for each in sets))
    scores, correct, predicted = (np.concatenate(column) for column in columns)
    level, labelled = triage.levels(scores, predicted), all(each.labelled for each in sets)
    counts = np.bincount(level, minlength=3).tolist()
    accuracy = (float(correct[level == v].mean()) if labelled and counts[v] else None for v in range(3))
    shares = (count / len(level) for count in counts)
    return Row(name, sets[0].tier, len(level), tuple(shares), tuple(counts), tuple(accuracy))


@dataclass(frozen=True)
class Guarantee:
    """The share of good inputs above the threshold, over random splits into calibration and test.

    mean, standard_error   over splits. Given the data, splits are independent, so the error is that of the check itself
    bound                  what is promised for the mean
    exact                  the mean over all splits if no scores are equal: 1 - k / (n + 1)
    worst                  the largest share in one split
    """

    mean: float
    standard_error: float
    bound: float
    exact: float
    worst: float
    splits: int
    calibration: int
    test: int

    @property
    def holds(self) -> bool:
        """Whether the mean is at most the bound, up to two standard errors of this check."""
        return self.mean <= self.bound + 2 * self.standard_error


def check_guarantee(
    scores: np.ndarray, share: float, splits: int = 200, seed: int = 0, calibration: int | None = None
) -> Guarantee:
    """Return how well the promise holds: calibrate on random parts of good scores, and count the others above the
    threshold.

    A random split of any fixed data is exchangeable. So the promise must hold exactly for the mean over splits,
    whatever the data are.

    calibration  how many scores to calibrate on; None: half of them
    """
    values = np.asarray(scores)
    size = len(values) // 2 if calibration is None else calibration
    if values.ndim != 1 or not least_count(check_promise("share", share)) <= size < len(values) or splits < 2:
        numbers = f"{values.size} scores, {size} of them for calibration, {splits} splits"
        accepted = f"at least {least_count(share)} for calibration, one more for the test, and 2 splits"
        raise InputError(explain("scores", numbers, accepted))
    rng, above = np.random.default_rng(seed), np.empty(splits)
    for number in range(splits):
        shuffled = rng.permuted(values)
        above[number] = (~(shuffled[size:] <= conformal_quantile(shuffled[:size], share))).mean()
    error, test = float(above.std(ddof=1) / np.sqrt(splits)), len(values) - size
    exact = 1 - conformal_rank(size, share) / (size + 1)
    return Guarantee(float(above.mean()), error, share, exact, float(above.max()), splits, size, test)
