"""The three steps of one training iteration, see :mod:`abnn.tasks.classification`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from abnn.config import Objective
from abnn.model.calls import evaluating
from abnn.model.network import AttachedNetwork
from abnn.outliers import OutlierBatch, Outliers
from abnn.train.loss import Losses, check_learns, plain_along, touching
from abnn.train.optimizers import can_follow
from abnn.train.trainable import Trainable

EXPLODED = 1e4  # a posterior sigma from which training has diverged


class Steps(Trainable):
    """Updates a model by one batch of in-distribution data and the outliers made from it."""

    title = "fitting attachments"

    def __init__(
        self,
        model: AttachedNetwork,
        objective: Objective,
        outliers: Outliers | None,
        fabric: Any,
        optimizers: dict[str, torch.optim.Optimizer],
    ) -> None:
        self.model, self.objective, self.outliers, self.fabric = model, objective, outliers, fabric
        self.attachments = [parameter for _, parameter in model.attachment_parameters()]
        # Parameters that the caller has frozen stay frozen.
        self.backbone = [parameter for _, parameter in model.backbone_parameters() if parameter.requires_grad]
        self.optimizers = optimizers
        self.attachment_optimizer = optimizers["attachments"]
        self.backbone_optimizer = optimizers.get("backbone")  # None: the backbone is frozen
        model.backbone_changed |= self.backbone_optimizer is not None
        self.joint = objective.together and self.backbone_optimizer is not None
        self.capturable = can_follow(optimizers.values())
        # Outliers that cannot be captured are made before the captured step.
        self.outliers_first = bool(self.capturable and outliers and not outliers.chosen_for(model.example).capturable)
        self.lowest_divergence = float("inf")
        self.losses = Losses(model, objective, fabric.autocast)
        self.plain_comes_along = self.losses.can_come_along and self.backbone_optimizer is None

    def step(self, x: Any, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Make one iteration; return the losses before their weights."""
        with plain_along(self.model, False):
            return self._step(x, y, generator)

    def prepare_step(self, x: Any, y: Tensor) -> tuple[Tensor, ...]:
        """Return outliers, severities and labels where a captured step cannot make them; nothing where it can."""
        if self.outliers is None or not self.outliers_first:
            return ()
        batch = self.outliers(x, y, None)
        return batch.x, batch.severity, batch.y

    def step_with(self, x: Any, y: Tensor, *prepared: Tensor) -> dict[str, Tensor]:
        with plain_along(self.model, False):
            return self._step(x, y, None, OutlierBatch(*prepared) if prepared else None)

    def _step(
        self, x: Any, y: Tensor, generator: torch.Generator | None, outlier_batch: OutlierBatch | None = None
    ) -> dict[str, Tensor]:
        losses: dict[str, Tensor] = {}
        self.model.train(self.backbone_optimizer is not None)
        _clear_gradients(self._parameters)
        if self.backbone_optimizer is not None and not self.joint:
            losses["backbone"] = self.backbone_step(x, y)
        id_losses, plain = self.id_step(x, y, None if self.plain_comes_along else self.losses.plain(x))
        losses |= id_losses
        if self.outliers is not None:
            losses["outliers"] = self.outlier_step(x, y, generator, plain, outlier_batch)
        elif self.objective.together:
            self._learn(everything=self.joint)
        return losses

    def backbone_step(self, x: Any, y: Tensor) -> Tensor:
        """1. Minimise the ID loss over the backbone. Attachments are drawn but not updated; returns the loss."""
        assert self.backbone_optimizer is not None
        goal, draws = self.objective, self.objective.draws[0]
        total = x.new_zeros(())
        rounds = draws if goal.update_per_draw else 1
        for _ in range(rounds):
            self.model.resample(1 if goal.update_per_draw else draws)
            with touching(self.backbone + self.attachments if goal.keep_gradient else self.backbone, self._parameters):
                loss, *_ = self.losses.data_loss(x, y, False, None)
                self.fabric.backward(loss)
            self._update(self.backbone_optimizer, self.backbone)
            total = total + loss.detach() / rounds
        return total

    def id_step(self, x: Any, y: Tensor, plain: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor | None]:
        """2. Minimise the ID loss plus the weighted KL over the attachments, and over the backbone where both learn
        jointly.

        Returns the losses and the backbone's outputs. These are ``plain``; where that is None, they come from the same
        pass.
        """
        goal = self.objective
        self.model.resample(goal.draws[1])
        learning = self._parameters if self.joint else self.attachments
        with touching(learning, self._parameters), plain_along(self.model, self.plain_comes_along and plain is None):
            loss, kl, right, plain = self.losses.data_loss(x, y, True, plain)
            check_learns(self.model, loss)
            self.fabric.backward(loss + kl)
        if not goal.together:
            self._learn(everything=False)
        return {"id": loss.detach(), "weighted_kl": kl.detach(), self.model.task.measure: right}, plain

    def outlier_step(
        self,
        x: Any,
        y: Tensor,
        generator: torch.Generator | None,
        plain: Tensor | None = None,
        outlier_batch: OutlierBatch | None = None,
    ) -> Tensor:
        """3. Minimise or maximise the loss of outliers, and return it; normalisation statistics never see outliers."""
        assert self.outliers is not None
        goal, batch = self.objective, outlier_batch or self.outliers(x, y, generator)
        self.model.resample(goal.draws[2])
        everything = self.joint or (goal.outliers_update == "all" and self.backbone_optimizer is not None)
        with touching(self._parameters if everything else self.attachments, self._parameters), evaluating(self.model):
            loss, kl = self.losses.outlier_loss(batch.x, batch.y, batch.severity, generator, plain)
            self.fabric.backward((-1 if goal.maximise else 1) * goal.alpha * (loss + kl))
        self._learn(everything)
        return loss.detach()

    def values(self) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {f"attachments.{name}": p for name, p in self.model.attachment_parameters()}
        if self.backbone_optimizer is not None:
            values |= {f"backbone.{n}": v for n, v in self.model.backbone.state_dict(keep_vars=True).items()}
        return values

    def more(self) -> Any:
        return {"lowest": self.lowest_divergence}

    def restore_more(self, more: Any) -> None:
        self.lowest_divergence = more["lowest"]

    def end_epoch(self, epoch: int, means: dict[str, float]) -> dict[str, float]:
        """Return the posterior's width, and the diagnostic that the paper's discussion asks for.

        ``id_divergence`` is the loss of step 2, which equals KL[q || p(w | ID data)] per input up to a constant. Its
        growth above its lowest value so far shows how much uncertainty the outliers have put into the attachments, and
        warns when that is paid for with ID performance.
        """
        divergence = means["id"] + means["weighted_kl"]
        self.lowest_divergence = min(self.lowest_divergence, divergence)
        with torch.no_grad():
            sigma = torch.cat([layer.weight_sigma.flatten() for layer in self.model.layers])
        return {
            "id_divergence": divergence,
            "id_divergence_growth": divergence - self.lowest_divergence,
            "sigma_mean": sigma.mean().item(),
            "sigma_max": sigma.max().item(),
        }

    def trouble(self) -> str | None:
        with torch.no_grad():
            sigma = torch.stack([layer.weight_sigma.max() for layer in self.model.layers]).max().item()
        return None if sigma < EXPLODED else f"a posterior sigma reached {sigma:.3g}"

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return self.backbone + self.attachments

    def _learn(self, everything: bool) -> None:
        """Update the attachments, and with ``everything`` also a backbone that is not frozen."""
        self._update(self.attachment_optimizer, self.attachments)
        if everything and self.backbone_optimizer is not None:
            self._update(self.backbone_optimizer, self.backbone)

    def _update(self, optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> None:
        average_gradients(parameters, self.fabric)
        optimizer.step()
        _clear_gradients(parameters)


def _clear_gradients(parameters: list[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def average_gradients(parameters: list[nn.Parameter], fabric: Any) -> None:
    """Average gradients over all devices in one message."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if fabric.world_size == 1 or not gradients:
        return
    flat = fabric.all_reduce(torch.cat([gradient.flatten() for gradient in gradients]), reduce_op="mean")
    for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
        gradient.copy_(part.view_as(gradient))
