"""The training step that most methods share: minimise a sum of losses with one optimiser."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from abnn.attached import Attached
from abnn.baselines.base import Run
from abnn.train.optimizers import can_follow
from abnn.train.steps import average_gradients
from abnn.train.trainable import Trainable

Losses = Callable[[Tensor, Tensor, torch.Generator | None], dict[str, Tensor]]


class Minimise(Trainable):
    """Minimises the sum of ``losses(x, y, generator)`` over the parameters that its optimiser holds.

    ``network`` is what is trained and put into checkpoints: the run's, or a part of it.
    """

    def __init__(
        self, run: Run, losses: Losses, optimizer: torch.optim.Optimizer, title: str, network: nn.Module | None = None
    ) -> None:
        self.run, self.losses, self.title = run, losses, title
        self.network = network or run.network
        self.optimizers = {"network": optimizer}
        self.capturable = can_follow([optimizer])

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        self.network.train()
        losses = self.losses(x, y, generator)
        self.update(torch.stack(list(losses.values())).sum(), "network")
        return {name: loss.detach() for name, loss in losses.items()}

    def update(self, loss: Tensor, name: str) -> None:
        """One step of the named optimiser down the gradient of ``loss``; no gradient stays behind anywhere."""
        optimizer = self.optimizers[name]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.run.fabric.backward(loss)
        average_gradients(parameters, self.run.fabric)
        optimizer.step()
        clear_gradients(self.network.parameters())

    def values(self) -> dict[str, Tensor]:
        return state_of(self.network)


def clear_gradients(parameters: Iterable[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def state_of(network: nn.Module) -> dict[str, Any]:
    """All tensors of a network that mean something, each where it lives; statistics not yet gathered mean nothing."""
    empty = isinstance(network, Attached) and not network.distance.fitted
    state = network.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if not (empty and name.startswith("distance."))}
