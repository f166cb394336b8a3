"""One score of everything that is known of an input: its prediction, how it fits to its class, how far it is from the data."""

from __future__ import annotations

from torch import Tensor

from abnn.model.distance import Gate
from abnn.scores.distance import OUTSIDE_POWER, far, outside_of, reach, unfit
from abnn.scores.probability import entropy, margin
from abnn.scores.registry import Predicted, score, without_statistics

MISFIT_WEIGHT, DISTANCE_WEIGHT, OUTSIDE_WEIGHT = 0.2, 0.2, 2.0
GATED = {
    "inside": "margin",
    "misfit": MISFIT_WEIGHT,
    "distance": DISTANCE_WEIGHT,
    "outside": OUTSIDE_WEIGHT,
    "power": OUTSIDE_POWER,
}
"""The gated score as it is, for records."""


@score("gated", statistics=True)
def _gated(prediction: Predicted) -> Tensor:
    distance, gate = prediction.distance, prediction.gate
    if distance is None or prediction.misfit is None or gate is None:
        raise without_statistics("gated")
    return gated(margin(prediction.samples), entropy(prediction.samples), distance, prediction.own_misfit, gate)


def gated(margin: Tensor, entropy: Tensor, distance: Tensor, misfit: Tensor, gate: Gate) -> Tensor:
    """(1 - o) margin + o entropy + 0.2 m + 0.2 v + 2 o + far(d), with m and v the misfit and the distance d in units of what
    is usual and o how far d is outside:

        m = clip((misfit - fits) / (misfits - fits)),    v = clip((d - low) / (high - low)),    both to [-1, 1],
        o = max(v, 0)^3.

    Within the range of ID data the question is whether the prediction is wrong, and then another class is nearly as
    probable: the margin knows that better than the entropy, which also counts how the rest is spread. Outside the
    question is how readable an input is at all, which is in all classes.

    ``misfit`` is that to the predicted class: what the features say about the prediction, which finds mistakes that the
    network is sure of. Within the range of ID data the distance d counts no more than that, outside more than
    everything else can, and where an input is outside for certain more distance does not count, so that readability
    decides; until it is so far away that only broken values could be, where far = log10 d / (10 high) begins. One ID
    input in twenty is halfway outside (v above 0.33 to 0.44): the third power leaves these to their margin. What is usual
    comes from held-out ID data, see :class:`abnn.model.distance.Gate`; the constants were chosen on validation data of MNIST
    and SVHN, with the paper's network, MobileNetV3 and ResNet-18.
    """
    how_far = reach(distance, gate)
    out = outside_of(how_far)
    unusual = MISFIT_WEIGHT * unfit(misfit, gate) + DISTANCE_WEIGHT * how_far
    return margin.lerp(entropy, out) + unusual + OUTSIDE_WEIGHT * out + far(distance, gate)
