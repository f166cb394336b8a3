"""Whether a network still knows what it knew: its accuracy with attachments and without; where it learns along, before."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from abnn.errors import AbnnWarning, explain
from abnn.model.blocks import evaluating, logits_of
from abnn.model.inputs import Batch, call
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.predict import predict

BATCHES, TOLERANCE = 10, 0.02
LOST, LOST_JOINT = "The attachments cost accuracy", "Training the backbone with the attachments cost accuracy"
ADVICE = "Fit again with a lower lr, more epochs, or fewer blocks (last=...)."
CHECK = "Check its weights, how inputs are prepared, and that labels are in its order of classes."
ADVICE_JOINT = "Freeze the backbone (freeze_backbone=True), or fit again with a lower lr and backbone_lr."


@dataclass(frozen=True)
class Knowledge:
    """Counts over ``inputs`` labelled inputs.

    plain, attached    right without attachments, and right by the mean prediction
    forgotten, learnt  right without attachments alone, and right with them alone
    changed            whether the network has learnt along, so that "without attachments" is how it was before
    chance             how many would be right without attachments if labels were dealt out at random; 0: not known
    """

    inputs: int
    plain: int
    attached: int
    forgotten: int
    learnt: int
    changed: bool = False
    chance: float = 0.0

    @property
    def lost(self) -> bool:
        """Whether more than two points of accuracy are gone, which is beyond two standard errors of the difference."""
        gone = self.forgotten - self.learnt
        return gone > TOLERANCE * self.inputs and gone > 2 * math.sqrt(self.forgotten + self.learnt)

    @property
    def at_chance(self) -> bool:
        """Whether the network is right no more often than labels in any order would be, within two standard deviations.

        Not where even a perfect network could not be told from that: a single class, or a few inputs.
        """
        limit = self.chance + 2 * math.sqrt(self.chance * (1 - self.chance / max(self.inputs, 1)))
        return 0 < self.chance and self.plain <= limit < self.inputs

    def __str__(self) -> str:
        after, before = (f"{count / max(self.inputs, 1):.1%}" for count in (self.attached, self.plain))
        if self.changed:
            return f"{after} are classified right now and {before} were before"
        return f"{after} are classified right with attachments and {before} without"

    def complaint(self, inputs: str) -> str:
        """What is wrong where accuracy is lost; ``inputs``: what they are."""
        return f"{LOST_JOINT if self.changed else LOST}: of {self.inputs:,} {inputs} {self}."


@torch.no_grad()
def recall(model: AttachedNetwork, batches: Iterable[tuple[Any, Tensor]]) -> list[Tensor]:
    """Which inputs of the first batches the network classifies right without attachments, to :func:`compare` with later."""
    if model.task.distribution != "classes":
        return []
    device = model.layers[0].weight_mean.device
    with evaluating(model.backbone):
        return [_label(model, x.to(device)) == y.to(device) for x, y in islice(batches, BATCHES)]


@torch.no_grad()
def compare(
    model: AttachedNetwork,
    batches: Iterable[tuple[Any, Tensor]],
    most: int | None = None,
    known: Sequence[Tensor] | None = None,
) -> Knowledge:
    """Look at all batches, or at the first ones. ``known``: which the network had right before, looked at here unless given."""
    device = model.layers[0].weight_mean.device
    counts = torch.zeros(5, dtype=torch.int64)
    said, labels = (torch.zeros(model.classes, dtype=torch.float64) for _ in range(2))
    with evaluating(model), evaluating(model.backbone):
        for index, (x, y) in enumerate(islice(batches, most)):
            x, y = x.to(device), y.to(device)
            if known is None:
                label = _label(model, x)
                said += torch.bincount(label.cpu(), minlength=model.classes)
                labels += torch.bincount(y.cpu(), minlength=model.classes)
            before = label == y if known is None else known[index].to(device)
            after = predict(model, x, score="max-probability", replay=False).label == y
            groups = (torch.ones_like(after), before, after, before & ~after, after & ~before)
            counts += torch.stack(groups).sum(1).cpu()
    inputs, plain, attached, forgotten, learnt = counts.tolist()
    chance = float(said @ labels) / max(inputs, 1)
    return Knowledge(inputs, plain, attached, forgotten, learnt, known is not None and model.backbone_changed, chance)


def _label(model: AttachedNetwork, x: Batch) -> Tensor:
    logits = logits_of(call(model.backbone, x))
    assert logits is not None  # attach() has seen that there are some
    return logits.argmax(1)


def warn_if_lost(
    model: AttachedNetwork, batches: Iterable[tuple[Any, Tensor]], known: Sequence[Tensor] | None = None
) -> None:
    """Warn where attachments, or with ``known`` training both, cost accuracy on the first batches of training data.

    Also warn of a network that stayed as it was and is at chance there: a score learns from which predictions are right.
    """
    if model.task.distribution != "classes":
        if model.task.spread is None and known is None:  # else attachments that make it worse do not count
            _warn_if_worse(model, batches)
        return
    result = compare(model, batches, BATCHES, known)
    if result.lost:
        text = f"{result.complaint('training inputs,')} {ADVICE_JOINT if result.changed else ADVICE}"
        warnings.warn(text, AbnnWarning, stacklevel=3)
    if result.at_chance:
        share, chance = (f"{count / result.inputs:.1%}" for count in (result.plain, result.chance))
        actual = f"a network at chance: of {result.inputs:,} training inputs {share} are right, and labels in any order would give {chance}"
        warnings.warn(explain("backbone", actual, "a trained network", CHECK), AbnnWarning, stacklevel=3)


@torch.no_grad()
def _warn_if_worse(model: AttachedNetwork, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Warn where errors, such as those of several labels, grow by more than 2 % and two standard errors."""
    run, rows = Pass(model, plain=True), []
    for x, y in islice(batches, BATCHES):
        outputs = run(x.to(model.device))
        y = y.to(model.device)
        rows.append(torch.stack([model.task.errors(outputs[:1], y), model.task.errors(outputs, y)]))
    plain, both = torch.cat(rows, dim=1).cpu().double()  # MPS has no float64
    growth = both - plain
    if growth.mean() > TOLERANCE * plain.mean() and growth.mean() > 2 * growth.std() / math.sqrt(len(growth)):
        numbers = f"from {plain.mean():.4g} to {both.mean():.4g}"
        warnings.warn(
            f"The attachments made the mean error grow {numbers} on training data. {ADVICE}", AbnnWarning, stacklevel=4
        )
