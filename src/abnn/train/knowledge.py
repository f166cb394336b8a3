"""Does a network still know what it knew? Its accuracy with attachments, against that without or before a fit."""

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
from abnn.model.calls import evaluating, logits_of
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
    """Counts of inputs whose labels are known.

    inputs     all of them
    plain      right without attachments
    attached   right by the mean prediction, with attachments
    forgotten  right without attachments only
    learnt     right with attachments only
    joint      whether the backbone learnt along; then "without attachments" means before the fit
    chance     how many would be right without attachments if labels were dealt out at random; 0: not known
    """

    inputs: int
    plain: int
    attached: int
    forgotten: int
    learnt: int
    joint: bool = False
    chance: float = 0.0

    @property
    def lost(self) -> bool:
        """Whether accuracy fell by more than two points, and by more than two standard errors of the difference."""
        gone = self.forgotten - self.learnt
        return gone > TOLERANCE * self.inputs and gone > 2 * math.sqrt(self.forgotten + self.learnt)

    @property
    def at_chance(self) -> bool:
        """Whether the network is right no more often than labels in any order would be, within two standard deviations.

        False where even a perfect network could not be told from that: with a single class, or with a few inputs.
        """
        limit = self.chance + 2 * math.sqrt(self.chance * (1 - self.chance / max(self.inputs, 1)))
        return 0 < self.chance and self.plain <= limit < self.inputs

    def __str__(self) -> str:
        after, before = (f"{count / max(self.inputs, 1):.1%}" for count in (self.attached, self.plain))
        if self.joint:
            return f"{after} are classified right now and {before} were before"
        return f"{after} are classified right with attachments and {before} without"

    def complaint(self, inputs: str) -> str:
        """Return a sentence that says how much accuracy is lost; ``inputs`` names the inputs in it."""
        return f"{LOST_JOINT if self.joint else LOST}: of {self.inputs:,} {inputs} {self}."


@torch.no_grad()
def recall(model: AttachedNetwork, batches: Iterable[tuple[Any, Tensor]]) -> list[Tensor]:
    """Return which inputs of the first batches are right without attachments, for :func:`compare` later on."""
    if model.task.distribution != "classes":
        return []
    with evaluating(model.backbone):
        return [_label(model, x.to(model.device)) == y.to(model.device) for x, y in islice(batches, BATCHES)]


@torch.no_grad()
def compare(
    model: AttachedNetwork,
    batches: Iterable[tuple[Any, Tensor]],
    most: int | None = None,
    right_before: Sequence[Tensor] | None = None,
) -> Knowledge:
    """Return how much a network knows with attachments and without, counted over batches.

    most          how many batches to count, at most; None: all
    right_before  of :func:`recall`, before a fit that changed the network; None: the network without attachments is
                  asked now
    """
    device = model.device
    counts = torch.zeros(5, dtype=torch.int64)
    predictions, labels = (torch.zeros(model.classes, dtype=torch.float64) for _ in range(2))  # of each class
    with evaluating(model), evaluating(model.backbone):
        for index, (x, y) in enumerate(islice(batches, most)):
            x, y = x.to(device), y.to(device)
            if right_before is None:
                label = _label(model, x)
                predictions += torch.bincount(label.cpu(), minlength=model.classes)
                labels += torch.bincount(y.cpu(), minlength=model.classes)
            before = label == y if right_before is None else right_before[index].to(device)
            after = predict(model, x, score="max-probability", replay=False).label == y
            groups = (torch.ones_like(after), before, after, before & ~after, after & ~before)
            counts += torch.stack(groups).sum(1).cpu()
    inputs, plain, attached, forgotten, learnt = counts.tolist()
    chance = float(predictions @ labels) / max(inputs, 1)
    joint = right_before is not None and model.backbone_changed
    return Knowledge(inputs, plain, attached, forgotten, learnt, joint, chance)


def _label(model: AttachedNetwork, x: Batch) -> Tensor:
    logits = logits_of(call(model.backbone, x))
    assert logits is not None  # attach() checked that
    return logits.argmax(1)


def warn_if_lost(
    model: AttachedNetwork, batches: Iterable[tuple[Any, Tensor]], right_before: Sequence[Tensor] | None = None
) -> None:
    """Warn where a fit cost accuracy on the first batches of training data.

    Also warn about a network that the fit did not change and that is at chance there: the score is learnt from which
    predictions are right.

    right_before  of :func:`recall`, where the backbone learnt along; None: it did not
    """
    if model.task.distribution != "classes":
        # A task with learnt widths gives no weight to attachments that make predictions worse.
        if model.task.spread is None and right_before is None:
            _warn_if_worse(model, batches)
        return
    result = compare(model, batches, BATCHES, right_before)
    if result.lost:
        text = f"{result.complaint('training inputs,')} {ADVICE_JOINT if result.joint else ADVICE}"
        warnings.warn(text, AbnnWarning, stacklevel=3)
    if result.at_chance:
        share, chance = (f"{count / result.inputs:.1%}" for count in (result.plain, result.chance))
        actual = (
            f"a network at chance: of {result.inputs:,} training inputs {share} are right, and labels in any order "
        )
        actual += f"would give {chance}"
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
