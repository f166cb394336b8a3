"""How much attachments count in a prediction, and for which inputs: learnt from held-out inputs.

With x how changed an input looks, in units of what is usual, p its plain and q its attached prediction,

    prediction = (1 - a) p + a q,    a = trust * min(1, max(0, x - familiar)).

``trust`` is 1/2, or a larger number if the network then reads more of the changed inputs. That number is 1 where
held-out inputs are new to the network, and falls to 3/4 the surer it is that the network was trained on them, see
:func:`abnn.train.combine.members.training_overlap`.

``familiar`` is the smallest of a few limits, from 1 on, with which at most one in a thousand ordinary inputs becomes
wrong, and no more than become right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from abnn.model.evidence import Evidence
from abnn.model.network import AttachedNetwork
from abnn.scores.combined import CHANGED, NEVER
from abnn.train.combine.gather import LabelledOutliers
from abnn.train.combine.members import ByOverlap

LEAST_TRUST = 0.5
MOST_TRUST = ByOverlap(new=1.0, trained=0.75)
LIMITS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, NEVER)
"""Candidates for ``familiar``, in units of how changed an input looks. Below 1 are 5 in 6 ordinary inputs."""
MOST_ERRORS = 1e-3
"""The largest share of ordinary inputs that may become wrong."""


class Predictions(NamedTuple):
    """Predictions of labelled inputs.

    changes          how changed the inputs look, in units of what is usual, [B]
    plain, attached  the probabilities without and with attachments, [B, K]
    labels           the right classes, [B]
    """

    changes: Tensor
    plain: Tensor
    attached: Tensor
    labels: Tensor

    def right(self, trust: float, familiar: float) -> Tensor:
        """Return which inputs are predicted right with this trust and limit, as bools, [B]."""
        share = trust * (self.changes - familiar).clamp(0, 1)
        return torch.lerp(self.plain, self.attached, share[:, None]).argmax(1) == self.labels


def learn_trust(
    model: AttachedNetwork, ordinary: Evidence, labels: Tensor, changed: LabelledOutliers | None, overlap: float
) -> tuple[float, float]:
    """Return ``trust`` and ``familiar`` of a model whose parts have their units; 1/2 and 1 where a prediction is no
    class.

    overlap  how sure it is that the network was trained on the held-out inputs, in [0, 1]
    """
    trust, familiar = LEAST_TRUST, LIMITS[0]
    if model.task.distribution != "classes":
        return trust, familiar
    if changed is not None:
        predictions = _predictions(model, changed.evidence, changed.labels)
        most = MOST_TRUST.at(overlap)
        right_with_least, right_with_most = (int(predictions.right(each, familiar).sum()) for each in (trust, most))
        trust = most if right_with_most > right_with_least else trust
    predictions = _predictions(model, ordinary, labels)
    before = predictions.right(0.0, familiar)
    for familiar in LIMITS:
        after = predictions.right(trust, familiar)
        losses, gains = int((before & ~after).sum()), int((after & ~before).sum())
        if losses <= min(gains, MOST_ERRORS * len(labels)):
            break
    return trust, familiar


def _predictions(model: AttachedNetwork, evidence: Evidence, labels: Tensor) -> Predictions:
    combined = model.combined
    changes = combined.in_units(combined.raw_parts(evidence))[:, combined.names.index(CHANGED)]
    plain, attached = model.task.samples(torch.stack([evidence.plain, evidence.attached]))
    return Predictions(changes, plain, attached, labels)
