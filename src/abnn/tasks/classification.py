"""Classification: one logit for each of K classes, of which one is right.

With z_s the logits of draw s and p = 1/S sum_s softmax(z_s) the mean prediction, one iteration has three steps:

    1. backbone (omega_1), unless frozen      minimise the ID loss
    2. attachments (omega_2), ID data         minimise the ID loss + kl_weight KL[q || prior]
    3. attachments (omega_2), outliers        minimise sign * alpha (outlier loss + kl_weight KL), sign -1 to maximise

Or all at once ("together"): one update by the sum of 2 and 3, also of a backbone that is not frozen. A backbone with a
step of its own knows nothing of outliers: it worked against the attachments of the default, and the network lost what
it knew.

Losses are averages over the batch. "mean" losses look at the mean prediction p, "draws" losses average over the draws.

The default holds on to the backbone. Its targets are q = distil p_backbone + (1 - distil) one-hot on ordinary data, and
(1 - t) q + t / K on outliers of severity t. It also practises not to know: half of the classes are hidden at random,
and over the logits of the other classes the prediction for inputs of a hidden class is to be uniform.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.bayes.claims import claims_of
from abnn.config import Objective
from abnn.errors import AbnnWarning, InputError, explain
from abnn.model.evidence import Evidence
from abnn.tasks.base import LEAST_LOG, Task, Usual, wrong_outputs

ONE_OUTPUT = (
    'Numbers, not classes? Pass task="regression". For one logit z of a yes-or-no question, wrap it in a module that '
    "returns torch.stack([0 * z, z], 1), z flat."
)
FEWEST_CLASSES = 4  # of which some can be hidden
HIDDEN_SHARE = 0.2  # of the classes, while the score is learnt
SMALL = 1e-3  # is added to entropies and divergences, so that their logarithms are finite
LEAST_CLAIMED = 1e-6  # the least share of the last features that is claimed, and the least that is not
PARTS = [
    "energy", "odds", "entropy",
    "attached energy", "attached odds", "attached entropy", "change of mind",
    "widened energy", "widened attached energy",
]  # fmt: skip
UNCLAIMED = "unclaimed"
READOUT_PARTS = ["misfit", "smallness", "clipped energy", UNCLAIMED]


def mean_logs(logs: Tensor) -> Tensor:
    """Return sum_k p_k ln q_k of every pair p, q of D distributions, [D, D, B], from their logarithms, [D, B, K].

    Where p is q, this is minus an entropy. KL[p || q] is the difference of two of these sums: in float64 some digits of
    it are left where p and q hardly differ.
    """
    return (logs[:, None].exp() * logs).sum(3)


def log_mean_prediction(draw_logits: Tensor) -> Tensor:
    """ln p_k = ln 1/S sum_s softmax(z_s)_k, [B, K], from [S, B, K]."""
    return draw_logits.log_softmax(2).logsumexp(0) - math.log(draw_logits.shape[0])


def mean_logits(draw_logits: Tensor) -> Tensor:
    """Return logits of the mean prediction, [B, K], from [S, B, K]: ln p + 1/S sum_s logsumexp(z_s).

    The second term changes no probability and makes the result equal to z where all draws agree on it.
    """
    return log_mean_prediction(draw_logits) + draw_logits.logsumexp(2, keepdim=True).mean(0)


def above_zero(logits: Tensor) -> Tensor:
    """Return logits in which -inf, ln p of a probability that was rounded to zero, is that of the smallest one that is
    not."""
    return logits.nan_to_num(nan=math.nan, posinf=math.inf, neginf=LEAST_LOG)


def of_loss(logits: Tensor) -> Tensor:
    """Return logits in which -inf is so far below the largest one that its probability is still rounded to zero.

    So losses are finite, whatever the target. No gradient goes there.
    """
    return logits.where(logits != -torch.inf, logits.detach().amax(-1, keepdim=True) + LEAST_LOG)


def mean_cross_entropy(draw_logits: Tensor, target: Tensor) -> Tensor:
    """- sum_k target_k ln p_k of the mean prediction, averaged over the batch."""
    return -(target * log_mean_prediction(draw_logits)).sum(1).mean()


def draw_cross_entropy(draw_logits: Tensor, target: Tensor) -> Tensor:
    """- 1/S sum_s sum_k target_k ln softmax(z_s)_k, averaged over the batch."""
    return -(target * draw_logits.log_softmax(2)).sum(2).mean()


def draw_bce(draw_logits: Tensor, target: Tensor) -> Tensor:
    """K independent sigmoids against the target, averaged over draws, batch and classes (the authors' outlier loss)."""
    return F.binary_cross_entropy_with_logits(draw_logits, target.expand_as(draw_logits))


LOSSES = {"mean": mean_cross_entropy, "draws": draw_cross_entropy, "bce": draw_bce}


def graded_target(target: Tensor, severity: Tensor) -> Tensor:
    """(1 - t) target + t / K: certainty fades with severity t."""
    t = severity[:, None].float()
    return (1 - t) * target + t / target.shape[1]


def ordinary_target(objective: Objective, y: Tensor, classes: int, plain: Tensor | None) -> Tensor:
    """Return the target of ordinary data, [B, K]: labels, mixed with the backbone's own prediction by ``distil``."""
    labels = F.one_hot(y, classes).float()
    return labels if plain is None else torch.lerp(labels, plain.float().softmax(1), objective.distil)


def hidden_loss(draw_logits: Tensor, target: Tensor, y: Tensor) -> Tensor:
    """Return the mean cross-entropy over the visible classes, where each class is hidden with probability 1/2.

    The target of an input whose class is visible is ``target``, normalised over the visible classes; that of the others
    is uniform over them.
    """
    classes = target.shape[1]
    hidden = torch.rand(classes, device=target.device) < 0.5
    # Neither all nor none: then the first one alone.
    hidden = torch.where(hidden.all() | ~hidden.any(), torch.arange(classes, device=target.device) == 0, hidden)
    visible = (~hidden).float()
    uniform = (visible / visible.sum()).expand_as(target)
    target = target * visible
    target = target / target.sum(1, keepdim=True).clamp_min(1e-6)
    target = torch.where(hidden[y][:, None], uniform, target)
    return mean_cross_entropy(draw_logits.masked_fill(hidden, -1e4), target)


class Classification(Task):
    """One of K classes is right."""

    name = "classification"

    def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
        if len(shape) != 2 or shape[0] != batch or shape[1] < 2:
            fix = ONE_OUTPUT if shape in ((batch,), (batch, 1)) else ""
            raise wrong_outputs(shape, batch, f"shape ({batch}, K), one logit for each of K >= 2 classes", fix)
        if outputs is not None and (outputs >= 0).all() and ((outputs.float().sum(1) - 1).abs() < 1e-4).all():
            actual, fix = "a network that returns probabilities", "Return the logits, or log_softmax of them."
            accepted = "logits, of which attachments and scores take the softmax themselves"
            warnings.warn(explain("backbone", actual, accepted, fix), AbnnWarning, stacklevel=3)
        return shape[1]

    def average(self, outputs: Tensor, plain: bool = False) -> Tensor:
        return mean_logits(outputs)

    def _loss(
        self, goal: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None, severity: Any, generator: Any
    ) -> Tensor:
        outputs, classes = of_loss(outputs), outputs.shape[2]
        ordinary = ordinary_target(goal, target, classes, plain)
        if severity is None:
            loss = LOSSES[goal.id_loss](outputs, ordinary.to(outputs.dtype))
            hides = goal.hide and classes >= FEWEST_CLASSES
            return loss + goal.hide * hidden_loss(outputs, ordinary, target) if hides else loss
        if goal.target == "graded":
            outlier_target = graded_target(ordinary, severity)
        elif goal.target == "uniform":
            outlier_target = torch.full_like(outputs[0], 1 / classes)
        else:
            device = generator.device if generator is not None else outputs.device
            outlier_target = torch.rand(outputs.shape[1:], generator=generator, device=device).to(outputs)
        return LOSSES[goal.outlier_loss](outputs, outlier_target.to(outputs.dtype))

    def part_names(self, readout: bool) -> list[str]:
        return PARTS + READOUT_PARTS if readout else PARTS

    def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
        """Return the parts named in ``PARTS`` and, with a last linear layer, in ``READOUT_PARTS``.

        Odds are ln (1 - p) / p of the best class. An energy is widened by dividing the logits' distances from their
        mean by a number that grows with the variances. The more it is widened, the higher it is, up to -mean - ln K.
        "unclaimed" is ln (1 - e) / e of the share e of the last features that classes claim, see
        :mod:`abnn.bayes.claims`.
        """
        weight, bias = evidence.weight, evidence.bias
        both = above_zero(torch.stack([evidence.plain, evidence.attached]))
        if visible is not None:
            both = both[..., visible]
            weight, bias = (None if each is None else each[visible] for each in (weight, bias))
        best, place = both.max(2, keepdim=True)
        mean = both.mean(2, keepdim=True)
        variance = (evidence.variances - usual.variances).exp().mean(1, keepdim=True)
        narrow = (1 + variance).rsqrt()  # 0 where it is infinite
        logits = [both, both, torch.lerp(mean, both, narrow)]
        last = evidence.last
        if last is not None and weight is not None:
            clipped = F.linear(last.minimum(usual.ceiling), weight.float(), None if bias is None else bias.float())
            logits.append(clipped[None])
        # In float64, where there is one, see mean_logs.
        wider = torch.float32 if both.device.type == "mps" else torch.float64
        # Rows, each [B, K]: plain and attached; both without their best class; both widened; clipped.
        stack = torch.cat(logits).to(wider)
        stack[2:4].scatter_(2, place, float("-inf"))
        logs = stack.log_softmax(2)
        # Energies -ln sum_k exp z_k (Liu et al. 2020, arXiv:2010.03759), as ln p - z of the best class: few kernels.
        energies, rest, widened, *more = (logs.amax(2) - stack.amax(2)).split(2)
        means = mean_logs(logs[:2])
        means[0, 1].sub_(means[0, 0])  # minus KL[plain || attached]
        (entropy, change), (_, attached_entropy) = (SMALL - means).log()
        odds = -(rest + best[..., 0])
        columns = [energies[0], odds[0], entropy, energies[1], odds[1], attached_entropy, change, *widened]
        if last is not None and weight is not None:
            offset = usual.last - last
            length = torch.linalg.vector_norm(offset, dim=1, dtype=wider).clamp_min(usual.least)  # less is rounding
            size = torch.linalg.vector_norm(last, 1, dim=1, dtype=wider)
            claims = claims_of(weight) if usual.claims is None or visible is not None else usual.claims
            claim = torch.linalg.vector_norm(F.linear(offset, claims), dim=1, dtype=wider) / length
            misfit = (weight[place[0, :, 0]] * offset).sum(1) / length
            columns += [misfit, -(size + 1e-6).log(), more[0][0], (1 - claim.square()).logit(LEAST_CLAIMED)]
        return torch.stack(columns, dim=1).float()

    def told_classes(self, outputs: int) -> int:
        return outputs

    def hidden_classes(self, classes: int, rounds: int, generator: torch.Generator) -> list[Tensor]:
        if classes < FEWEST_CLASSES:
            return []
        count = max(1, round(HIDDEN_SHARE * classes))
        return [torch.randperm(classes, generator=generator) < count for _ in range(rounds)]

    def hidden_inputs(self, labels: Tensor, hidden: Tensor) -> Tensor:
        return hidden[labels]

    def right_inputs(self, evidence: Evidence, labels: Tensor, hidden: Tensor) -> Tensor:
        return evidence.plain.masked_fill(hidden, -torch.inf).argmax(1) == labels

    def samples(self, outputs: Tensor) -> Tensor:
        if outputs.ndim != 3 or outputs.shape[2] < 2:
            actual = f"a network with outputs of shape {tuple(outputs.shape[2:])} for each input"
            raise InputError(explain("model", actual, "one logit for each of two or more classes"))
        return outputs.float().softmax(2)

    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        return (log_mean_prediction(outputs).argmax(1) == target).float()
