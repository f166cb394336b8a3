"""The three steps of one training iteration, in the open."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from abnn.attached import Attached
from abnn.bayes.layers import drawn, kl_of
from abnn.config import Objective
from abnn.model.blocks import evaluating
from abnn.outliers import Outliers
from abnn.predict.compiling import eagerly, is_compiled, with_network
from abnn.train.knowledge import BATCHES, compare, most_frequent
from abnn.train.optimizers import can_follow
from abnn.train.trainable import Trainable

EXPLODED = 1e4


class Steps(Trainable):
    """Updates a model by one batch of in-distribution data and the outliers made from it."""

    title = "fitting attachments"

    def __init__(
        self,
        model: Attached,
        objective: Objective,
        outliers: Outliers | None,
        fabric: Any,
        optimizers: dict[str, torch.optim.Optimizer],
    ) -> None:
        self.model = model
        self.objective = objective
        self.outliers = outliers
        self.fabric = fabric
        self.attachments = [parameter for _, parameter in model.attachment_parameters()]
        # What was frozen before stays so, for its own reasons.
        self.backbone = [parameter for _, parameter in model.backbone_parameters() if parameter.requires_grad]
        self.optimizers = optimizers
        self.attachment_optimizer = optimizers["attachments"]
        self.backbone_optimizer = optimizers.get("backbone")  # None: the backbone is frozen
        model.backbone_changed |= self.backbone_optimizer is not None
        self.at_once = objective.together and self.backbone_optimizer is not None
        self.capturable = can_follow(optimizers.values())
        self.lowest = float("inf")
        self.compiled = is_compiled(model.net)
        self.id_loss = with_network(self._id_loss, model.net, repr(objective))
        self.outlier_loss = with_network(self._outlier_loss, model.net, repr(objective))

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        """One iteration; returns the losses before their weights."""
        losses: dict[str, Tensor] = {}
        self.model.train(self.backbone_optimizer is not None)
        self._zero()
        if self.backbone_optimizer is not None and not self.at_once:
            losses["backbone"] = self.backbone_step(x, y)
        losses |= self.id_step(x, y)
        if self.outliers is not None:
            losses["outliers"] = self.outlier_step(x, y, generator)
        elif self.objective.together:
            self._learn(everything=self.at_once)
        return losses

    def backbone_step(self, x: Tensor, y: Tensor) -> Tensor:
        """1. Minimise the ID loss over the backbone; attachments are drawn but not updated."""
        assert self.backbone_optimizer is not None
        goal, draws = self.objective, self.objective.draws[0]
        total = x.new_zeros(())
        rounds = draws if goal.update_per_draw else 1
        for _ in range(rounds):
            self.model.resample(1 if goal.update_per_draw else draws)
            with touching(self.backbone + self.attachments if goal.keep_gradient else self.backbone, self._all):
                loss, _, _ = self.id_loss(x, y, with_kl=False)
                self.fabric.backward(loss)
            self._update(self.backbone_optimizer, self.backbone)
            total = total + loss.detach() / rounds
        return total

    def id_step(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """2. Minimise the ID loss plus the weighted KL over the attachments, and the backbone where all learn at once."""
        goal = self.objective
        self.model.resample(goal.draws[1])
        with touching(self._all if self.at_once else self.attachments, self._all):
            loss, kl, right = self.id_loss(x, y, with_kl=True)
            self.fabric.backward(loss + kl)
        if not goal.together:
            self._learn(everything=False)
        return {"id": loss.detach(), "weighted_kl": kl.detach(), "accuracy": right}

    def outlier_step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> Tensor:
        """3. Teach what outliers deserve; normalisation statistics never see them."""
        assert self.outliers is not None
        goal = self.objective
        made = self.outliers(x, y, generator)
        self.model.resample(goal.draws[2])
        everything = self.at_once or (goal.outliers_update == "all" and self.backbone_optimizer is not None)
        with touching(self._all if everything else self.attachments, self._all), evaluating(self.model):
            loss, kl = self.outlier_loss(made.x, made.y, made.severity, generator)
            self.fabric.backward((-1 if goal.maximise else 1) * goal.alpha * (loss + kl))
        self._learn(everything)
        return loss.detach()

    def known(self, batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> tuple[float, float] | None:
        """Of a frozen network, with or without attachments as they are now, whichever is worse; by chance: naming the most
        frequent class. What is lost where outlier losses are maximised, no rate would save."""
        if self.backbone_optimizer is not None or (self.outliers is not None and self.objective.maximise):
            return None
        some = list(islice(batches(), BATCHES))
        with eagerly() if self.compiled else contextlib.nullcontext():
            found = compare(self.model, some)
        return min(found.plain, found.attached) / found.inputs, most_frequent(torch.cat([y for _, y in some]))

    def values(self) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {f"attachments.{name}": p for name, p in self.model.attachment_parameters()}
        if self.backbone_optimizer is not None:
            values |= {f"backbone.{n}": v for n, v in self.model.backbone.state_dict(keep_vars=True).items()}
        return values

    def more(self) -> Any:
        return {"lowest": self.lowest}

    def restore_more(self, more: Any) -> None:
        self.lowest = more["lowest"]

    def end_epoch(self, epoch: int, means: dict[str, float]) -> dict[str, float]:
        """The posterior's width, and the diagnostic that the paper's discussion asks for.

        ``id_divergence`` is the loss of step 2, which equals KL[q || p(w | ID data)] per input up to a constant. Its
        growth above its lowest value so far shows how much uncertainty the outliers have put into the attachments, and
        warns when that is paid for with ID performance.
        """
        divergence = means["id"] + means["weighted_kl"]
        self.lowest = min(self.lowest, divergence)
        with torch.no_grad():
            sigma = torch.cat([layer.weight_sigma.flatten() for layer in self.model.layers])
        return {
            "id_divergence": divergence,
            "id_divergence_growth": divergence - self.lowest,
            "sigma_mean": sigma.mean().item(),
            "sigma_max": sigma.max().item(),
        }

    def trouble(self) -> str | None:
        with torch.no_grad():
            sigma = torch.stack([layer.weight_sigma.max() for layer in self.model.layers]).max().item()
        return None if sigma < EXPLODED else f"a posterior sigma reached {sigma:.3g}"

    @property
    def _all(self) -> list[nn.Parameter]:
        return self.backbone + self.attachments

    def _id_loss(self, x: Tensor, y: Tensor, with_kl: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, the weighted KL, and the share of inputs that the mean over the draws classifies right."""
        logits = self._logits(x)
        task = self.model.task
        right = task.right(logits.detach(), y).mean()
        return task.id_loss(self.objective, logits, y), self._kl(x, with_kl), right

    def _outlier_loss(
        self, x: Tensor, y: Tensor, severity: Tensor, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        logits = self._logits(x)
        loss = self.model.task.outlier_loss(self.objective, logits, y, severity, generator)
        return loss, self._kl(x, self.objective.outlier_kl)

    def _logits(self, x: Tensor) -> Tensor:
        # A compiler makes weights where they are used; without one, fewer and larger operations make them beforehand.
        ready = contextlib.nullcontext() if self.compiled else drawn(self.model.layers)
        with self.fabric.autocast(), ready:
            logits = self.model.draw_logits(x)
        return logits.float()

    def _kl(self, x: Tensor, wanted: bool) -> Tensor:
        """The weighted KL term."""
        if not wanted:
            return x.new_zeros(())
        return self.objective.kl_factor(len(x)) * kl_of(self.model.layers, self.objective.sampled_kl)

    def _learn(self, everything: bool) -> None:
        """Update the attachments, and the backbone with them where a step is about everything."""
        self._update(self.attachment_optimizer, self.attachments)
        if everything and self.backbone_optimizer is not None:
            self._update(self.backbone_optimizer, self.backbone)

    def _update(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        average_gradients(parameters, self.fabric)
        optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    def _zero(self) -> None:
        for parameter in self._all:
            parameter.grad = None


@contextlib.contextmanager
def touching(wanted: Iterable[nn.Parameter], all_parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, gradients reach exactly the wanted parameters."""
    every = list(all_parameters)
    flags = [parameter.requires_grad for parameter in every]
    chosen = {id(parameter) for parameter in wanted}
    try:
        for parameter in every:
            parameter.requires_grad_(id(parameter) in chosen)
        yield
    finally:
        for parameter, flag in zip(every, flags):
            parameter.requires_grad_(flag)


def average_gradients(parameters: list[nn.Parameter], fabric: Any) -> None:
    """Average gradients over all devices in one message."""
    if fabric.world_size == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    flat = fabric.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]), reduce_op="mean")
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))
