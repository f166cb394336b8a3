"""How much attachments count in a prediction, and for which inputs: learnt from held-out inputs.

With x how changed an input looks, in units of what is usual, p its plain and q its attached prediction,

    prediction = (1 - a) p + a q,    a = trust * min(1, max(0, x - familiar)).

``trust`` is 1/2, or a larger number if that reads more of the held-out inputs that were changed: 1, and down to 3/4 the surer it is that the network
has learnt from this data itself, see :func:`abnn.train.combine.members.seen_before`. ``familiar`` is the smallest of a few limits, from 1 on,
with which at most one in a thousand held-out ordinary inputs becomes wrong, and no more than become right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from abnn.model.evidence import Evidence
from abnn.model.network import AttachedNetwork
from abnn.scores.combined import CHANGED, NEVER
from abnn.train.combine.gather import Made

LEAST, MOST, MOST_OF_SEEN = 0.5, 1.0, 0.75  # trust; the last where the network has learnt from the data itself
LIMITS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, NEVER)
"""Units of how changed an input looks. Below 1 are 5 in 6 ordinary inputs."""
FORGOTTEN = 1e-3
"""The largest share of ordinary inputs that may become wrong."""


class Read(NamedTuple):
    """What is said about labelled inputs: how changed they look, [B], and both predictions, [B, K]."""

    looks: Tensor
    plain: Tensor
    attached: Tensor
    labels: Tensor

    def right(self, trust: float, familiar: float) -> Tensor:
        """Return which inputs are predicted right with this trust and limit, as bools, [B]."""
        share = trust * (self.looks - familiar).clamp(0, 1)
        return torch.lerp(self.plain, self.attached, share[:, None]).argmax(1) == self.labels


def learn_trust(
    model: AttachedNetwork, ordinary: Evidence, labels: Tensor, changed: Made | None, known: float
) -> tuple[float, float]:
    """Return ``trust`` and ``familiar`` of a model whose parts have their units; 1/2 and 1 where a prediction is no class.

    known  how sure it is that the network has learnt from this data itself, from 0 to 1
    """
    trust, familiar = LEAST, LIMITS[0]
    if model.task.distribution != "classes":
        return trust, familiar
    if changed is not None:
        found = _read(model, changed[0], changed[1])
        most = MOST + known * (MOST_OF_SEEN - MOST)
        less, more = (int(found.right(each, familiar).sum()) for each in (trust, most))
        trust = most if more > less else trust
    found = _read(model, ordinary, labels)
    before = found.right(0.0, familiar)
    for familiar in LIMITS:
        after = found.right(trust, familiar)
        forgotten, learnt = int((before & ~after).sum()), int((after & ~before).sum())
        if forgotten <= min(learnt, FORGOTTEN * len(labels)):
            break
    return trust, familiar


def _read(model: AttachedNetwork, evidence: Evidence, labels: Tensor) -> Read:
    combined = model.combined
    looks = combined.in_units(combined.raw_parts(evidence))[:, combined.names.index(CHANGED)]
    plain, attached = model.task.samples(torch.stack([evidence.plain, evidence.attached]))
    return Read(looks, plain, attached, labels)
