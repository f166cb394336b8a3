"""The distance of an input's features from the training data as a score, and what is usual for it.

distance  see :mod:`abnn.model.distance`
"""

from __future__ import annotations

from torch import Tensor

from abnn.model.distance import Gate
from abnn.scores.registry import Predicted, score, without_statistics

OUTSIDE_POWER = 3
FAR = 10.0  # times the gate's upper end; pictures of any kind, with values as training data has them, reach 3 times it


@score("distance", statistics=True)
def _distance(prediction: Predicted) -> Tensor:
    if prediction.distance is None:
        raise without_statistics("distance")
    return prediction.distance


def unfit(misfit: Tensor, gate: Gate) -> Tensor:
    """How badly inputs fit to a class: 0 as usual, 1 as is rare for good ones or worse, -1 at best."""
    return ((misfit - gate.fits) / max(gate.misfits - gate.fits, 1e-12)).clamp(-1, 1)


def outside(distance: Tensor, gate: Gate) -> Tensor:
    """How far an input is outside the range of ID data: 0 in its middle, 1 where it is outside for certain."""
    return outside_of(reach(distance, gate))


def reach(distance: Tensor, gate: Gate) -> Tensor:
    return ((distance - gate.low) / max(gate.high - gate.low, 1e-12)).clamp(-1, 1)


def far(distance: Tensor, gate: Gate) -> Tensor:
    return (distance / (FAR * max(gate.high, 1e-12))).clamp_min(1).log10()


def outside_of(reach: Tensor) -> Tensor:
    return reach.clamp_min(0) ** OUTSIDE_POWER
