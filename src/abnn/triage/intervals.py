"""Widths that come true: what held-out data say about predicted standard deviations, and the quantiles of their errors.

The predictive variance s^2 of an input is multiplied by

    exp(offset + (slope - 1) (ln s^2 - usual) + w' d),    ln s^2 - usual cut to +-3 units and d to +-4,

with d how unusual its features are at every place. Then an error is measured in standard deviations, e = |y - m| / s; intervals of
coverage c reach as far as the conformal quantile of e on held-out data (split-conformal prediction, Papadopoulos et al. 2002;
Lei et al. 2018, arXiv:1604.04173, for errors in units of a learnt spread). :mod:`abnn.triage.statements` learns these numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

CUT = 4.0
LOGS = 3.0


@dataclass(frozen=True)
class Width:
    """What was learnt about one number; see the module.

    errors  |y - m| / s of held-out inputs, sorted; where they are many, the 1,000 conformal quantiles of equal steps
    inputs  how many there were
    """

    offset: float
    slope: float
    usual: float
    unit: float
    weights: tuple[float, ...]
    errors: tuple[float, ...]
    inputs: int

    def factor(self, log_variance: Tensor, distances: Tensor) -> Tensor:
        """The square root of what the variance is multiplied by, [B]."""
        beyond = ((log_variance - self.usual) / self.unit).clamp(-LOGS, LOGS) * self.unit
        weights = distances.new_tensor(self.weights)
        return ((self.offset + (self.slope - 1) * beyond + distances.clamp(-CUT, CUT) @ weights) / 2).exp()

    def quantile(self, coverage: float) -> float:
        """The error that a new one exceeds with probability at most 1 - coverage; the largest where there are too few."""
        if len(self.errors) < self.inputs:
            place = math.ceil(coverage * len(self.errors) - 1e-9) - 1
        else:
            place = math.ceil((self.inputs + 1) * coverage - 1e-9) - 1
        return self.errors[min(max(place, 0), len(self.errors) - 1)]


@dataclass(frozen=True)
class Intervals:
    """One :class:`Width` for each number that is predicted."""

    widths: tuple[Width, ...]

    def factor(self, log_variance: Tensor, distances: Tensor) -> Tensor:
        """By how much standard deviations are multiplied, [B, D]."""
        import torch  # here alone: thresholds are kept without it

        columns = [each.factor(column, distances) for each, column in zip(self.widths, log_variance.unbind(1))]
        return torch.stack(columns, dim=1)

    def quantiles(self, coverage: float) -> list[float]:
        return [each.quantile(coverage) for each in self.widths]
