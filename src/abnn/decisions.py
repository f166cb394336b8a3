"""From score to decision: the one rule that turns scores and two thresholds into verdicts, and what thresholds shall achieve.

Nothing here needs torch: exported models are judged without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from abnn.errors import InputError, explain, not_negative, whole_seed

VERDICTS = ("accept", "notice", "reject")
COST_KINDS = ("right", "wrong", "far")
"""Inputs that costs tell apart: read right, read wrong, far from everything known."""


def verdicts(score: Any, notice: Any, reject: Any) -> list[str]:
    """Return "accept" where score <= notice, else "notice" where score <= reject, else "reject"; NaN is rejected.

    score           one number per input, larger = more uncertain: a numpy array, a list or a torch tensor
    notice, reject  one number each, or one per input; they are rounded to the precision of the scores
    """
    return [VERDICTS[level] for level in verdict_levels(score, notice, reject).tolist()]


def verdict_levels(score: Any, notice: Any, reject: Any) -> np.ndarray:
    """Return :func:`verdicts` as places in ``VERDICTS``, int64, for counting."""
    if hasattr(score, "detach"):  # of torch, which runs of exported models do without
        import torch

        score = score if score.is_floating_point() else score.double()  # thresholds of whole numbers need not be whole
        limits = (torch.as_tensor(each, dtype=score.dtype, device=score.device) for each in (notice, reject))
        passed = [(score <= limit).cpu().numpy() for limit in limits]
    else:
        score = np.asarray(score)
        score = score if score.dtype.kind == "f" else score.astype(np.float64)
        passed = [score <= np.asarray(each, score.dtype) for each in (notice, reject)]
    return 2 - passed[0].astype(np.int64) - passed[1]


def check_promise(argument: str, share: object) -> float:
    """Return a share between 0 and 1 as a float, or raise an error."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share < 1:
        raise InputError(explain(argument, repr(share), "a number between 0 and 1"))
    return float(share)


@dataclass(frozen=True)
class Costs:
    """What each verdict costs for an input that is (read right, read wrong, far from everything known).

    Only ratios matter. ``far`` is the share of far inputs among those to come; the rest is like calibration data.
    """

    accept: tuple[float, float, float] = (0.0, 10.0, 20.0)
    notice: tuple[float, float, float] = (1.0, 3.0, 5.0)
    reject: tuple[float, float, float] = (5.0, 2.0, 0.0)
    far: float = 0.1

    def __post_init__(self) -> None:
        for verdict in ("accept", "notice", "reject"):
            row = getattr(self, verdict)
            try:
                costs = tuple(float(cost) for cost in row)
            except (TypeError, ValueError):
                costs = ()
            if len(costs) != len(COST_KINDS) or not all(0 <= cost < math.inf for cost in costs):
                accepted = f"three finite numbers of at least 0, for inputs that are {', '.join(COST_KINDS)}"
                raise InputError(explain(f"costs of {verdict}", repr(row), accepted))
            object.__setattr__(self, verdict, costs)
        if not 0 <= self.far < 1:
            raise InputError(explain("far", repr(self.far), "a share of at least 0 and below 1"))

    @property
    def table(self) -> np.ndarray:
        """[verdict, kind]"""
        return np.array([self.accept, self.notice, self.reject])


@dataclass(frozen=True)
class TriageConfig:
    """How :func:`abnn.triage.calibrate` chooses thresholds.

    noticed     at most this share of good inputs is not accepted, on average over calibration sets
    rejected    at most this share of good inputs is rejected, likewise
    confidence  None: the promise holds on average over calibration sets. 0.95: it holds for 95 % of them, which takes a
                somewhat higher threshold
    per_class   thresholds for each predicted class, so that the promise holds within each of them
    costs       choose both thresholds by the least expected cost instead; nothing is promised then
    score       which score to put thresholds on; None: the model's own
    draws       how many draws predictions have; None: the model's own number
    seed        of these draws and of the outliers
    """

    noticed: float = 0.05
    rejected: float = 0.01
    confidence: float | None = None
    per_class: bool = False
    costs: Costs | None = None
    score: str | None = None
    draws: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_promise("noticed", self.noticed)
        check_promise("rejected", self.rejected)
        if self.confidence is not None:
            check_promise("confidence", self.confidence)
        if self.costs is not None and (self.per_class or self.confidence is not None):
            raise InputError(explain("costs", "costs together with per_class or confidence", "one or the other"))
        if self.draws is not None:
            object.__setattr__(self, "draws", not_negative("draws", self.draws))
        object.__setattr__(self, "seed", whole_seed(self.seed))
