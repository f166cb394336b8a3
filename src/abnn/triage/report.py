"""What verdicts did on data whose tier is known, and whether the promise holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abnn.config import check_promise
from abnn.errors import InputError, explain
from abnn.triage.thresholds import conformal_rank, least_count
from abnn.triage.triage import Triage

MOST_POINTS = 512
CHUNK = 4_000_000
"""Numbers that are shuffled at a time when the promise is checked."""


@dataclass(frozen=True)
class Row:
    """One set, or one tier with all its sets.

    shares    accepted, noticed, rejected
    counts    likewise
    accuracy  of the predictions among the accepted, the noticed and the rejected; None where there are none, or where an
              input has no class
    """

    name: str
    tier: str
    inputs: int
    shares: tuple[float, ...]
    counts: tuple[int, ...]
    accuracy: tuple[float | None, ...]


@dataclass(frozen=True)
class ThreeWayCurve:
    """What moving the lower threshold does, with the upper one fixed; one entry per value of the lower one.

    accepted, noticed              shares of all inputs; the rest, ``rejected``, stays the same
    risk_accepted, risk_noticed    shares of wrong predictions among them, nan where there are none
    """

    notice: np.ndarray
    accepted: np.ndarray
    risk_accepted: np.ndarray
    noticed: np.ndarray
    risk_noticed: np.ndarray
    rejected: float


@dataclass(frozen=True)
class Report:
    """Verdicts of one model: by set, by tier, and the curve over all sets together, where no class counts as wrong."""

    sets: tuple[Row, ...]
    tiers: tuple[Row, ...]
    curve: ThreeWayCurve


def rows_as_markdown(rows: Sequence[Row]) -> str:
    """Return a table with one line per row."""
    head = ["set", "tier", "inputs", "accepted", "noticed", "rejected", "accuracy of accepted", "accuracy of noticed"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.name, row.tier, str(row.inputs), *(f"{share:.1%}" for share in row.shares)]
        cells += ["–" if value is None else f"{value:.1%}" for value in row.accuracy[:2]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def report(triage: Triage, evaluation: Any) -> Report:
    """Return the verdicts of ``triage`` on the sets of an :class:`abnn.evaluate.evaluation.Evaluation` of the same model."""
    sets = evaluation.sets
    if not sets or any(triage.score not in each.scores for each in sets):
        names = ", ".join(sets[0].scores) if sets else "no sets"
        raise InputError(explain("evaluation", f"scores {names}", f"sets with the score {triage.score!r}"))
    rows = tuple(_row(triage, each.name, [each]) for each in sets)
    tiers = dict.fromkeys(each.tier for each in sets)
    by_tier = tuple(_row(triage, tier, [each for each in sets if each.tier == tier]) for tier in tiers)
    scores, correct, predicted = _joined(triage, sets)
    reject = np.array(triage.by_class, scores.dtype)[predicted, 1] if triage.by_class else triage.reject
    return Report(rows, by_tier, three_way_curve(scores, correct, reject))


def _joined(triage: Triage, sets: Sequence[Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parts = zip(*((each.scores[triage.score], each.correct, each.predicted) for each in sets))
    scores, correct, predicted = (np.concatenate(part) for part in parts)
    return scores, correct, predicted


def _row(triage: Triage, name: str, sets: Sequence[Any]) -> Row:
    scores, correct, predicted = _joined(triage, sets)
    level = triage.levels(scores, predicted)
    labelled = all(each.labelled for each in sets)
    counts = np.bincount(level, minlength=3).tolist()
    accuracy = (float(correct[level == v].mean()) if labelled and counts[v] else None for v in range(3))
    shares = (count / len(level) for count in counts)
    return Row(name, sets[0].tier, len(level), tuple(shares), tuple(counts), tuple(accuracy))


def three_way_curve(scores: np.ndarray, correct: np.ndarray, reject: float | np.ndarray) -> ThreeWayCurve:
    """Return shares and risks of the three verdicts for every lower threshold, at most ``MOST_POINTS`` of them.

    reject  the upper threshold, one for all inputs or one for each
    """
    scores, correct = np.asarray(scores), np.asarray(correct, bool)
    if scores.ndim != 1 or scores.shape != correct.shape or len(scores) == 0:
        raise InputError(explain("scores, correct", f"{scores.shape}, {correct.shape}", "two equally long rows"))
    below = scores <= reject
    order = np.argsort(scores[below], kind="stable")
    ordered, wrong = scores[below][order], np.append(0, np.cumsum(~correct[below][order]))
    kept = len(ordered)
    ends = np.append(0, np.searchsorted(ordered, np.unique(ordered), side="right"))
    if len(ends) > MOST_POINTS:
        ends = ends[np.unique(np.linspace(0, len(ends) - 1, MOST_POINTS).round().astype(int))]
    limits = np.append(np.nextafter(scores.min(), -np.inf), ordered)[ends]
    with np.errstate(invalid="ignore"):
        return ThreeWayCurve(
            notice=limits,
            accepted=ends / len(scores),
            risk_accepted=wrong[ends] / ends,
            noticed=(kept - ends) / len(scores),
            risk_noticed=(wrong[kept] - wrong[ends]) / (kept - ends),
            rejected=1 - kept / len(scores),
        )


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
    """Return what comes of calibrating on a random part of good scores and counting the rest above the threshold, many times.

    A random split of any fixed data is exchangeable, so the promise must hold for the mean over splits exactly, whatever
    the data. ``calibration`` is the number of scores to calibrate on; None: half of them.
    """
    check_promise("share", share)
    values = np.asarray(scores)
    size = len(values) // 2 if calibration is None else calibration
    if values.ndim != 1 or not least_count(share) <= size < len(values) or splits < 2:
        numbers = f"{values.size} scores, {size} of them for calibration, {splits} splits"
        accepted = f"at least {least_count(share)} for calibration, one more for the test, and 2 splits"
        raise InputError(explain("scores", numbers, accepted))
    rank = conformal_rank(size, share)
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // len(values))
    parts = []
    for first in range(0, splits, step):
        shuffled = rng.permuted(np.tile(values, (min(step, splits - first), 1)), axis=1)
        limits = np.partition(shuffled[:, :size], rank - 1, axis=1)[:, rank - 1]
        parts.append((~(shuffled[:, size:] <= limits[:, None])).mean(axis=1))
    above = np.concatenate(parts)
    error, test = float(above.std(ddof=1) / np.sqrt(splits)), len(values) - size
    return Guarantee(float(above.mean()), error, share, 1 - rank / (size + 1), float(above.max()), splits, size, test)
