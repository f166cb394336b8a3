"""Whether a frozen network still knows what it knew: its accuracy on training data, with attachments and without.

Attachments that learn too fast first overwrite what the blocks say and then have to learn the task anew, in the few epochs of
a fit. Their losses do not show that: the same loss may come from cautious predictions or from wrong ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from abnn.attached import Attached
from abnn.blocks import evaluating, logits_of
from abnn.errors import AbnnWarning

BATCHES, DRAWS, TOLERANCE = 10, 4, 0.02


@dataclass(frozen=True)
class Knowledge:
    """Accuracies on ``inputs`` labelled inputs: of the mean over a few draws, and of the backbone alone."""

    attached: float
    plain: float
    inputs: int

    @property
    def lost(self) -> float:
        return self.plain - self.attached


@torch.no_grad()
def compare(model: Attached, batches: Iterable[tuple[Tensor, Tensor]]) -> Knowledge:
    """Accuracies over the first batches; the model's draws are others afterwards."""
    attached = plain = inputs = 0
    model.resample(DRAWS, seed=0)
    with evaluating(model), evaluating(model.backbone):
        for x, y in islice(batches, BATCHES):
            logits = logits_of(model.backbone(x))
            assert logits is not None  # attach() has seen that there are some
            attached += int((model(x).argmax(1) == y).sum())
            plain += int((logits.argmax(1) == y).sum())
            inputs += len(y)
    return Knowledge(attached / max(inputs, 1), plain / max(inputs, 1), inputs)


def warn_if_lost(model: Attached, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Warn where attachments cost more than two points of the accuracy on training data."""
    found = compare(model, batches)
    if found.lost > TOLERANCE:
        warnings.warn(
            f"The attachments cost accuracy: of {found.inputs:,} training inputs, {found.attached:.1%} are classified right with "
            f"them and {found.plain:.1%} without. They have overwritten what the network knew; fit again with a lower lr, "
            "with more epochs, or with fewer blocks (last=...).",
            AbnnWarning,
            stacklevel=3,
        )
