"""What verdicts did on data whose tier is known, and whether the promise holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from abnn.errors import InputError, explain
from abnn.evaluate.evaluation import TIERS, Evaluation, SetResult
from abnn.triage.thresholds import check_promise, conformal_rank, least_count
from abnn.triage.verdicts import PLURALS, Triage

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
    shares: tuple[float, float, float]
    counts: tuple[int, int, int]
    accuracy: tuple[float | None, float | None, float | None]


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

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it: None in the place of nan."""
        curve = {
            name: [None if np.isnan(v) else float(v) for v in values] if isinstance(values, np.ndarray) else values
            for name, values in vars(self.curve).items()
        }
        return {
            "sets": [asdict(row) for row in self.sets],
            "tiers": [asdict(row) for row in self.tiers],
            "curve": curve,
        }

    def to_markdown(self) -> str:
        """A table with one line per set."""
        return rows_as_markdown(self.sets)


def rows_as_markdown(rows: Sequence[Row]) -> str:
    """A table with one line per row."""
    head = ["set", "tier", "inputs", *PLURALS, "accuracy of accepted", "accuracy of noticed"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [row.name, row.tier, str(row.inputs), *(f"{share:.1%}" for share in row.shares)]
        cells += ["–" if value is None else f"{value:.1%}" for value in row.accuracy[:2]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def report(triage: Triage, evaluation: Evaluation) -> Report:
    """Verdicts of ``triage`` on the sets of an evaluation of the same model."""
    sets = evaluation.sets
    if not sets or any(triage.score not in each.scores for each in sets):
        known = ", ".join(sets[0].scores) if sets else "no sets"
        raise InputError(explain("evaluation", f"scores {known}", f"sets with the score {triage.score!r}"))
    levels = [triage.levels(each.scores[triage.score], each.predicted) for each in sets]
    rows = tuple(_row(each.name, each.tier, [each], [level]) for each, level in zip(sets, levels))
    tiers = []
    for tier in TIERS:
        places = [number for number, each in enumerate(sets) if each.tier == tier]
        if places:
            tiers.append(_row(tier, tier, [sets[p] for p in places], [levels[p] for p in places]))
    scores = np.concatenate([each.scores[triage.score] for each in sets])
    correct = np.concatenate([each.correct for each in sets])
    reject: Any = triage.reject
    if triage.by_class:
        reject = np.array(triage.by_class, scores.dtype)[np.concatenate([each.predicted for each in sets]), 1]
    return Report(rows, tuple(tiers), three_way_curve(scores, correct, reject))


def three_way_curve(scores: np.ndarray, correct: np.ndarray, reject: float | np.ndarray) -> ThreeWayCurve:
    """Shares and risks of the three verdicts for every lower threshold, at most ``MOST_POINTS`` of them.

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
    limits = np.append(np.nextafter(np.sort(scores)[0], -np.inf), ordered)[ends]
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
    """Calibrate on a random part of ``scores`` of good inputs, count the rest above the threshold; many times.

    A random split of any fixed data is exchangeable, so the promise must hold for the mean over splits exactly, whatever
    the data. ``calibration`` is the number of scores to calibrate on; None: half of them.
    """
    check_promise("share", share)
    values = np.asarray(scores)
    size = len(values) // 2 if calibration is None else calibration
    if values.ndim != 1 or not least_count(share) <= size < len(values) or splits < 2:
        given = f"{values.size} scores, {size} of them for calibration, {splits} splits"
        accepted = f"at least {least_count(share)} for calibration, one more for the test, and 2 splits"
        raise InputError(explain("scores", given, accepted))
    rank = conformal_rank(size, share)
    rng = np.random.default_rng(seed)
    step = max(1, CHUNK // len(values))
    parts = []
    for first in range(0, splits, step):
        shuffled = rng.permuted(np.tile(values, (min(step, splits - first), 1)), axis=1)
        limits = np.partition(shuffled[:, :size], rank - 1, axis=1)[:, rank - 1]
        parts.append((~(shuffled[:, size:] <= limits[:, None])).mean(axis=1))
    above = np.concatenate(parts)
    return Guarantee(
        mean=float(above.mean()),
        standard_error=float(above.std(ddof=1) / np.sqrt(splits)),
        bound=share,
        exact=1 - rank / (size + 1),
        worst=float(above.max()),
        splits=splits,
        calibration=size,
        test=len(values) - size,
    )


def _row(name: str, tier: str, sets: Sequence[SetResult], levels: Sequence[np.ndarray]) -> Row:
    level = np.concatenate(levels)
    correct = np.concatenate([each.correct for each in sets])
    labelled = all(each.labelled for each in sets)
    counts = np.bincount(level, minlength=3).tolist()
    accuracy = [float(correct[level == v].mean()) if labelled and counts[v] else None for v in range(3)]
    shares = [count / len(level) for count in counts]
    return Row(name, tier, len(level), tuple(shares), tuple(counts), tuple(accuracy))  # type: ignore[arg-type]
