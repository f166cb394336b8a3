"""Settings as objects: frozen dataclasses with their defaults and one line about each field."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, at_least_one, explain, whole_seed

KINDS = ("right", "wrong", "far")
"""Inputs that costs tell apart: read right, read wrong, far from everything known."""


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
            if len(costs) != len(KINDS) or not all(0 <= cost < math.inf for cost in costs):
                accepted = f"three finite numbers of at least 0, for inputs that are {', '.join(KINDS)}"
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
    draws       how many draws predictions have
    seed        of these draws and of the outliers
    """

    noticed: float = 0.05
    rejected: float = 0.01
    confidence: float | None = None
    per_class: bool = False
    costs: Costs | None = None
    score: str | None = None
    draws: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        check_promise("noticed", self.noticed)
        check_promise("rejected", self.rejected)
        if self.confidence is not None:
            check_promise("confidence", self.confidence)
        if self.costs is not None and (self.per_class or self.confidence is not None):
            raise InputError(explain("costs", "costs together with per_class or confidence", "one or the other"))
        object.__setattr__(self, "draws", at_least_one("draws", self.draws, fix="Ten is a good start."))
        object.__setattr__(self, "seed", whole_seed(self.seed))
