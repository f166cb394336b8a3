"""Widths that come true: predicted standard deviations, corrected by held-out data, and the quantiles of their errors.

The predictive variance s^2 of an input is multiplied by

    exp(offset + (slope - 1) (ln s^2 - usual) + w' d),    ln s^2 - usual cut to +-3 units and d to +-4,

where d says how unusual its features are at every place. An error is then measured in standard deviations, e = |y - m|
/ s. Intervals of coverage c reach as far as the conformal quantile of e on held-out data (split-conformal prediction,
Papadopoulos et al. 2002; for errors in units of a learnt spread, Lei et al. 2018, arXiv:1604.04173).
:mod:`abnn.triage.statements` learns these numbers.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from abnn.errors import AbnnWarning, explain
from abnn.triage.thresholds import conformal_rank, least_count

if TYPE_CHECKING:
    from torch import Tensor

CUT = 4.0  # of d
LOGS = 3.0  # units, of ln s^2 - usual


@dataclass(frozen=True)
class Width:
    """What was learnt about the width of one number; see the module.

    errors  |y - m| / s of held-out inputs, sorted; of many inputs, 1,000 conformal quantiles in equal steps
    inputs  how many held-out inputs there were
    """

    offset: float
    slope: float
    usual: float
    unit: float
    weights: tuple[float, ...]
    errors: tuple[float, ...]
    inputs: int

    def factor(self, log_variance: Tensor, distances: Tensor) -> Tensor:
        """Return the factor of the standard deviation, [B]: the square root of that of the variance."""
        beyond = ((log_variance - self.usual) / self.unit).clamp(-LOGS, LOGS) * self.unit
        weights = distances.new_tensor(self.weights)
        return ((self.offset + (self.slope - 1) * beyond + distances.clamp(-CUT, CUT) @ weights) / 2).exp()

    def quantile(self, coverage: float) -> float:
        """Return the error that a new one exceeds with probability at most 1 - coverage; the largest one of too few."""
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
        """Return the factors of standard deviations, [B, D]."""
        import torch  # only here: thresholds do without it

        columns = [each.factor(column, distances) for each, column in zip(self.widths, log_variance.unbind(1))]
        return torch.stack(columns, dim=1)

    def quantiles(self, coverage: float) -> list[float]:
        """Return :meth:`Width.quantile` of each number; warn where there were too few inputs for this coverage."""
        count = min(each.inputs for each in self.widths)
        if conformal_rank(count, 1 - coverage) > count:
            most = 10_000 * count // (count + 1) / 10_000  # rounded down, or it would be too many again
            actual, accepted = f"{coverage} with {count} calibration inputs", f"at most {most} with so many"
            fix = f"The interval holds as often as that. Calibrate on at least {least_count(1 - coverage)} inputs."
            warnings.warn(explain("coverage", actual, accepted, fix), AbnnWarning, stacklevel=3)  # of interval()
        return [each.quantile(coverage) for each in self.widths]
