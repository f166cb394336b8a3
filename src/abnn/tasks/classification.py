"""Classification: one logit for each of K classes, of which one is right.

With z_s the logits of draw s and p = 1/S sum_s softmax(z_s) the mean prediction, one iteration has three steps:

    1. backbone (omega_1), unless frozen      minimise the ID loss
    2. attachments (omega_2), ID data         minimise the ID loss + kl_weight KL[q || prior]
    3. attachments (omega_2), outliers        minimise sign * alpha (outlier loss + kl_weight KL), sign -1 to maximise

Or all at once ("together"): one update by the sum of 2 and 3, also of a backbone that is not frozen. With a step of its own, which
knows nothing of outliers, a backbone worked against the attachments of the default, and the network lost what it knew.
Losses are averages over the batch. "mean" losses look at the mean prediction p, "draws" losses average over the draws.
"""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.config import Objective
from abnn.errors import AbnnWarning, AttachError, InputError, explain
from abnn.tasks.base import Task


def log_mean_prediction(draw_logits: Tensor) -> Tensor:
    """ln p_k = ln 1/S sum_s softmax(z_s)_k, [B, K], from [S, B, K]."""
    return draw_logits.log_softmax(2).logsumexp(0) - math.log(draw_logits.shape[0])


def mean_cross_entropy(draw_logits: Tensor, target: Tensor) -> Tensor:
    """- sum_k target_k ln p_k of the mean prediction, averaged over the batch."""
    return -(target * log_mean_prediction(draw_logits)).sum(1).mean()


def draw_cross_entropy(draw_logits: Tensor, target: Tensor) -> Tensor:
    """- 1/S sum_s sum_k target_k ln softmax(z_s)_k, averaged over the batch."""
    return -(target * draw_logits.log_softmax(2)).sum(2).mean()


def draw_bce(draw_logits: Tensor, target: Tensor) -> Tensor:
    """K independent sigmoids against the target, averaged over draws, batch and classes (the authors' outlier loss)."""
    return F.binary_cross_entropy_with_logits(draw_logits, target.expand_as(draw_logits))


def graded_target(y: Tensor, severity: Tensor, classes: int) -> Tensor:
    """(1 - t) one-hot(y) + t / K: certainty fades with severity t."""
    t = severity[:, None].float()
    return (1 - t) * F.one_hot(y, classes) + t / classes


class Classification(Task):
    """One of K classes is right."""

    name = "classification"

    def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
        if len(shape) != 2 or shape[0] != batch or shape[1] < 2:
            raise AttachError(_no_classes(shape, batch))
        if outputs is not None and _are_probabilities(outputs):
            accepted = "logits, of which attachments and scores take the softmax themselves"
            message = explain(
                "backbone", "a network that returns probabilities", accepted, "Return the logits, or log(p)."
            )
            warnings.warn(message, AbnnWarning, stacklevel=3)
        return shape[1]

    def id_loss(self, objective: Objective, outputs: Tensor, target: Tensor) -> Tensor:
        loss = mean_cross_entropy if objective.id_loss == "mean" else draw_cross_entropy
        return loss(outputs, F.one_hot(target, outputs.shape[2]).to(outputs.dtype))

    def outlier_loss(
        self, objective: Objective, outputs: Tensor, target: Tensor, severity: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        classes = outputs.shape[2]
        if objective.target == "graded":
            outlier_target = graded_target(target, severity, classes)
        elif objective.target == "uniform":
            outlier_target = torch.full_like(outputs[0], 1 / classes)
        else:
            device = generator.device if generator is not None else outputs.device
            outlier_target = torch.rand(outputs.shape[1:], generator=generator, device=device).to(outputs)
        losses = {"mean": mean_cross_entropy, "draws": draw_cross_entropy, "bce": draw_bce}
        return losses[objective.outlier_loss](outputs, outlier_target.to(outputs.dtype))

    def samples(self, outputs: Tensor) -> Tensor:
        if outputs.ndim != 3 or outputs.shape[2] < 2:
            actual = f"a network with outputs of shape {tuple(outputs.shape[2:])} for each input"
            raise InputError(explain("model", actual, "one logit for each of two or more classes"))
        return outputs.float().softmax(2)

    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (log_mean_prediction(outputs).argmax(1) == target).float()


def _no_classes(output: tuple[int, ...], batch: int) -> str:
    actual = f"a network with outputs of shape {output} for {batch} {'input' if batch == 1 else 'inputs'}"
    accepted = f"shape ({batch}, K), one logit for each of K >= 2 classes"
    if output in ((batch,), (batch, 1)):
        fix = "For one logit z of a yes-or-no question, wrap it in a module that returns torch.stack([0 * z, z], 1), z flat."
    else:
        fix = "Wrap it in a module that returns one row of logits for each input."
    return explain("backbone", actual, accepted, fix)


def _are_probabilities(output: Tensor) -> bool:
    return bool((output >= 0).all() and ((output.float().sum(1) - 1).abs() < 1e-4).all())
