"""Whether a network still knows what it knew: its accuracy with attachments and without; where it learns along, before.

Attachments that learn too fast first overwrite what the blocks say and then have to learn the task anew, in the few epochs of
a fit. Their losses do not show that: the same loss may come from cautious predictions or from wrong ones. The share of inputs
that steps classify right tells it while it happens: when half of what the network knew beyond chance is gone at the end of an
epoch, the fit begins again at a third of the rate.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import AbnnWarning
from abnn.model.blocks import evaluating, logits_of
from abnn.model.network import AttachedNetwork
from abnn.predict import predict

BATCHES, DRAWS, TOLERANCE = 10, 4, 0.02
LOST, LOST_JOINT = "The attachments cost accuracy", "Training the backbone with the attachments cost accuracy"
ADVICE = (
    "They have overwritten what the network knew; fit again with a lower lr, more epochs, or fewer blocks (last=...)."
)
ADVICE_JOINT = "Freeze the backbone (freeze_backbone=True), or fit again with a lower lr and backbone_lr."


@dataclass(frozen=True)
class Knowledge:
    """Counts over ``inputs`` labelled inputs.

    plain, attached    right without attachments, and right by the mean over a few draws
    forgotten, learnt  right without attachments alone, and right with them alone
    changed            whether the network has learnt along, so that "without attachments" is how it was before
    """

    inputs: int
    plain: int
    attached: int
    forgotten: int
    learnt: int
    changed: bool = False

    @property
    def lost(self) -> bool:
        """Whether more than two points of accuracy are gone, which is beyond two standard errors of the difference."""
        gone = self.forgotten - self.learnt
        return gone > TOLERANCE * self.inputs and gone > 2 * math.sqrt(self.forgotten + self.learnt)

    def __str__(self) -> str:
        after, before = (f"{count / max(self.inputs, 1):.1%}" for count in (self.attached, self.plain))
        if self.changed:
            return f"{after} are classified right now and {before} were before"
        return f"{after} are classified right with attachments and {before} without"

    def complaint(self, inputs: str) -> str:
        """What is wrong where accuracy is lost; ``inputs``: what they are."""
        return f"{LOST_JOINT if self.changed else LOST}: of {self.inputs:,} {inputs} {self}."


def most_frequent(labels: Tensor | np.ndarray) -> float:
    """The share of the class that most labels name: what always naming it would get right."""
    return torch.as_tensor(labels).bincount().max().item() / len(labels)


@torch.no_grad()
def recall(model: AttachedNetwork, batches: Iterable[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Which inputs of the first batches the network classifies right without attachments, to :func:`compare` with later."""
    device = model.layers[0].weight_mean.device
    with evaluating(model.backbone):
        return [_right(model, x.to(device), y.to(device)) for x, y in islice(batches, BATCHES)]


@torch.no_grad()
def compare(
    model: AttachedNetwork,
    batches: Iterable[tuple[Tensor, Tensor]],
    most: int | None = None,
    known: Sequence[Tensor] | None = None,
) -> Knowledge:
    """Look at all batches, or at the first ones. ``known``: which the network had right before, looked at here unless given."""
    device = model.layers[0].weight_mean.device
    counts = torch.zeros(5, dtype=torch.int64)
    with evaluating(model), evaluating(model.backbone):
        for index, (x, y) in enumerate(islice(batches, most)):
            x, y = x.to(device), y.to(device)
            before = _right(model, x, y) if known is None else known[index].to(device)
            after = predict(model, x, draws=DRAWS, score="max-probability", replay=False).label == y
            groups = (torch.ones_like(after), before, after, before & ~after, after & ~before)
            counts += torch.stack(groups).sum(1).cpu()
    inputs, plain, attached, forgotten, learnt = counts.tolist()
    return Knowledge(inputs, plain, attached, forgotten, learnt, known is not None and model.backbone_changed)


def _right(model: AttachedNetwork, x: Tensor, y: Tensor) -> Tensor:
    logits = logits_of(model.backbone(x))
    assert logits is not None  # attach() has seen that there are some
    return logits.argmax(1) == y


def warn_if_lost(
    model: AttachedNetwork, batches: Iterable[tuple[Tensor, Tensor]], known: Sequence[Tensor] | None = None
) -> None:
    """Warn where attachments, or with ``known`` training both, cost accuracy on the first batches of training data."""
    result = compare(model, batches, BATCHES, known)
    if result.lost:
        text = f"{result.complaint('training inputs,')} {ADVICE_JOINT if result.changed else ADVICE}"
        warnings.warn(text, AbnnWarning, stacklevel=3)


WINDOW = 10  # steps at the end of an epoch that are looked at
LEFT = 0.5  # of what was known, the least that is left
SLOWER, TIMES = 3.0, 3  # by so much, and so often at most
TELLING = 3.0  # standard errors by which a loss must be larger than chance


def forgotten(before: float, now: float, chance: float, inputs: int) -> bool:
    """Whether the shares of right predictions say that more than half of what was known is gone, of so many inputs now."""
    return now - chance < LEFT * (before - chance) and before - now > TELLING * math.sqrt(0.25 / max(inputs, 1))


class Rescue:
    """Looks at the steps of a run.

    before  the share of inputs that were classified right before it
    chance  what that would be by chance
    """

    def __init__(self, before: float, chance: float, fabric: Any) -> None:
        self.fabric = fabric
        self.before, self.chance = self._over_devices(before), self._over_devices(chance)
        self.recent: deque[tuple[Tensor, int]] = deque(maxlen=WINDOW)  # shares of right predictions, and of how many

    def see(self, losses: dict[str, Tensor], inputs: int) -> None:
        share = losses["accuracy"].detach().clone()  # captured steps always return the same tensors
        self.recent.append((share, inputs))

    def lost(self) -> str | None:
        """At the end of an epoch: what its last steps say, if that is bad. The next epoch starts anew."""
        inputs = sum(count for _, count in self.recent)
        now = self._over_devices(sum(float(share) * count for share, count in self.recent) / inputs)
        self.recent.clear()
        if not forgotten(self.before, now, self.chance, inputs * self.fabric.world_size):
            return None
        return f"{now:.1%} of the training inputs are classified right, {self.before:.1%} were before"

    def _over_devices(self, share: float) -> float:
        if self.fabric.world_size == 1:
            return share
        return float(self.fabric.all_reduce(torch.tensor(share, device=self.fabric.device)))

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        recent = [[float(share), count] for share, count in self.recent]
        return {"before": self.before, "chance": self.chance, "recent": recent}

    def restore(self, state: dict[str, Any]) -> None:
        self.before, self.chance = state["before"], state["chance"]
        self.recent.extend((torch.tensor(share), int(count)) for share, count in state["recent"])
