"""Augmented Lagrangians for constraints g <= 0 (Bertsekas 1996, "Constrained Optimization and Lagrange Multiplier Methods").

The term of a constraint with multiplier m and penalty b is  m g + b/2 g^2  where  b g + m >= 0,  else  - m^2 / (2 b).
"""

from __future__ import annotations

import torch
from torch import Tensor


def lagrangian(g: Tensor, multiplier: Tensor | float, penalty: Tensor | float) -> Tensor:
    """The augmented Lagrangian term of the constraint g <= 0."""
    active = multiplier * g + 0.5 * penalty * g**2
    return torch.where(penalty * g + multiplier >= 0, active, -(multiplier**2) / (2 * penalty))


def updated(g: float, multiplier: float, penalty: float, rate: float, growth: float) -> tuple[float, float]:
    """Multiplier and penalty after a look at the constraint: a step up the gradient of the term in the multiplier."""
    slope = g if penalty * g + multiplier >= 0 else -multiplier / penalty
    return multiplier + rate * slope, penalty * growth if g > 0 else penalty
