"""Several labels at once: one logit for each of L labels, of which any number is right.

With z_s the logits of draw s and p = 1/S sum_s sigmoid(z_s), the losses are binary cross-entropies of p, averaged over
labels and batch. The targets are q = distil p_backbone + (1 - distil) y on ordinary data, and (1 - t) q + t / 2 on
outliers of severity t: the target 1/2 says that nothing is known.

The energy is that of all labels together, - sum_l ln(1 + exp z_l) (Wang et al. 2021, arXiv:2109.14162).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.config import Objective
from abnn.errors import InputError, explain
from abnn.model.evidence import Evidence
from abnn.tasks.base import LEAST_LOG, Task, Usual, wrong_outputs

SMALL = 1e-3  # is added to entropies and divergences, so that their logarithms are finite
PARTS = [
    "energy", "odds", "entropy",
    "attached energy", "attached odds", "attached entropy", "change of mind",
]  # fmt: skip
READOUT_PARTS = ["smallness"]


def finite(logits: Tensor) -> Tensor:
    """Return logits in which infinite ones, of probabilities that were rounded to 0 or 1, are those of the smallest
    probability that is not, or of one minus that."""
    return logits.nan_to_num(nan=math.nan, posinf=-LEAST_LOG, neginf=LEAST_LOG)


def joint_energy(logits: Tensor) -> Tensor:
    """- sum_l ln(1 + exp z_l)."""
    return -F.softplus(logits).sum(1)


def mean_odds(logits: Tensor) -> Tensor:
    """- |z|, averaged over labels: ln (1 - p) / p of the more probable answer, yes or no."""
    return -logits.abs().mean(1)


def cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """- p ln q - (1 - p) ln (1 - q) of each label, with q = sigmoid(logits) and p = sigmoid(target_logits).

    It uses softplus because of ONNX: there ln sigmoid, and with it torch's own cross-entropy, is infinite from logits
    of 88 on.
    """
    return target_logits.sigmoid() * F.softplus(-logits) + (-target_logits).sigmoid() * F.softplus(logits)


def log_entropy(logits: Tensor) -> Tensor:
    """ln (H + 1e-3), with H the mean entropy of all labels."""
    return (cross_entropy(logits, logits).mean(1) + SMALL).log()


def divergence(logits: Tensor, other: Tensor) -> Tensor:
    """The mean over labels of KL[p || q]."""
    return (cross_entropy(other, logits) - cross_entropy(logits, logits)).mean(1).clamp_min(0)


class Multilabel(Task):
    """Any number of L labels is right; the network gives one logit for each."""

    name = "multilabel"
    distribution = "labels"
    first_score = "label-entropy"

    def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
        if len(shape) != 2 or shape[0] != batch:
            raise wrong_outputs(shape, batch, f"shape ({batch}, L), one logit for each of L labels")
        return shape[1]

    def check_targets(self, y: Tensor, inputs: int, outputs: int, values: bool = True) -> Tensor:
        if tuple(y.shape) != (inputs, outputs):
            actual = f"targets of shape {tuple(y.shape)} for {inputs} inputs"
            raise InputError(explain("loader", actual, f"shape ({inputs}, {outputs}), 0 or 1 for each label"))
        y = y.float()
        if values and not ((y == 0) | (y == 1)).all():
            raise InputError(explain("loader", "targets other than 0 and 1", "0 or 1 for each label, no NaN"))
        return y

    def average(self, outputs: Tensor, plain: bool = False) -> Tensor:
        if len(outputs) == 1:
            return outputs[0]
        yes, no = ((-F.softplus(-z.float())).logsumexp(0) for z in (outputs, -outputs))
        return (yes - no).to(outputs.dtype)  # the logit of the mean probability

    def _loss(
        self, goal: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None, severity: Any, generator: Any
    ) -> Tensor:
        if plain is not None:
            target = torch.lerp(target, plain.float().sigmoid(), goal.distil)
        if severity is not None:
            target = torch.lerp(target, torch.full_like(target, 0.5), severity[:, None].float())
        draws, _, labels = outputs.shape
        outputs = finite(outputs)
        if draws == 1:
            return F.binary_cross_entropy_with_logits(outputs[0], target)
        scale = torch.tensor(float(draws), device=outputs.device).log()
        yes, no = (F.logsigmoid(sign * outputs).logsumexp(0) - scale for sign in (1, -1))
        return -(target * yes + (1 - target) * no).sum() / (len(target) * labels)

    def part_names(self, readout: bool) -> list[str]:
        return PARTS + READOUT_PARTS if readout else PARTS

    def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
        plain, attached = finite(evidence.plain), finite(evidence.attached)
        columns = [joint_energy(plain), mean_odds(plain), log_entropy(plain)]
        columns += [joint_energy(attached), mean_odds(attached), log_entropy(attached)]
        columns.append((divergence(plain, attached) + SMALL).log())
        if evidence.last is not None:
            columns.append(-(evidence.last.abs().sum(1) + 1e-6).log())
        return torch.stack(columns, dim=1)

    def samples(self, outputs: Tensor) -> Tensor:
        return outputs.float().sigmoid()

    def errors(self, outputs: Tensor, target: Tensor) -> Tensor:
        return ((self.samples(outputs).mean(0) > 0.5) != (target > 0.5)).float().mean(1)

    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the share of labels that are right."""
        return 1 - self.errors(outputs, target)

    def right_inputs(self, evidence: Evidence, labels: Tensor, hidden: Tensor) -> Tensor:
        return self.errors(evidence.plain[None], labels) == 0
