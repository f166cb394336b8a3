"""How much attachments count in a prediction, and for which inputs: learnt from held-out inputs.

With x how changed an input looks, in units of what is usual, p its plain and q its attached prediction,

    prediction = (1 - a) p + a q,    a = trust * min(1, max(0, x - familiar)).

``trust`` is the one of 1/2 and 1 with which more of the held-out inputs that were changed are read right. ``familiar`` is the smallest of
some limits, from 1 on, up to which hardly any held-out ordinary input that is right becomes wrong, and no more than become right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from abnn.model.evidence import Evidence
from abnn.model.network import AttachedNetwork
from abnn.scores.combined import CHANGED, NEVER
from abnn.train.combine.gather import Made

TRUSTS = (0.5, 1.0)
LIMITS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, NEVER)
"""Units of how changed an input looks. Below 1 are 5 in 6 ordinary inputs."""
FORGOTTEN = 1e-3
"""The largest share of ordinary inputs that may become wrong."""


def learn_trust(
    model: AttachedNetwork, ordinary: Evidence, labels: Tensor, changed: Made | None
) -> tuple[float, float]:
    """Return ``trust`` and ``familiar`` of a model whose parts have their units; 1/2 and 1 where a prediction is no class."""
    trust, familiar = TRUSTS[0], LIMITS[0]
    if model.task.distribution != "classes":
        return trust, familiar
    if changed is not None:
        reads = {each: int(right(model, changed[0], changed[1], each, familiar).sum()) for each in TRUSTS}
        trust = max(TRUSTS, key=lambda each: reads[each])  # the smaller one where they are equal
    before = right(model, ordinary, labels, 0.0, familiar)
    for familiar in LIMITS:
        after = right(model, ordinary, labels, trust, familiar)
        forgotten, learnt = int((before & ~after).sum()), int((after & ~before).sum())
        if forgotten <= min(learnt, FORGOTTEN * len(labels)):
            break
    return trust, familiar


def right(model: AttachedNetwork, evidence: Evidence, labels: Tensor, trust: float, familiar: float) -> Tensor:
    """Return which inputs are predicted right with this trust and limit, as bools, [B]."""
    combined = model.combined
    looks = combined.in_units(combined.raw_parts(evidence))[:, combined.names.index(CHANGED)]
    share = trust * (looks - familiar).clamp(0, 1)
    plain, attached = model.task.samples(torch.stack([evidence.plain, evidence.attached]))
    return torch.lerp(plain, attached, share[:, None]).argmax(1) == labels
