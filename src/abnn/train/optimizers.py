"""Optimisers and the schedules of their learning rates, by name.

Rates follow from (epoch, step). torch's schedulers count their own steps, which a run that goes on from a checkpoint or
begins again would have to rewind, and their products of tensors round differently on CUDA.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from abnn.errors import unknown

Schedule = Callable[[float], float]
"""A function from progress in [0, 1) to a factor of the learning rate."""
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "cycle": lambda progress: (
        min(1.0, 0.04 + 3.2 * progress) * 0.5 * (1 + math.cos(math.pi * max(0.0, progress - 0.3) / 0.7))
    ),
    "steps": lambda progress: 0.1 ** int(4 * progress + 1e-9),
    "thirds": lambda progress: 0.1 ** int(3 * progress + 1e-9),
    "fifths": lambda progress: 0.1 ** sum(progress + 1e-9 >= share for share in (0.4, 0.6, 0.8)),
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "adam-l2": partial(Adam, weight_decay=5e-4),
    "sgd": partial(SGD, momentum=0.9, weight_decay=5e-4),
    "nesterov": partial(SGD, momentum=0.9, weight_decay=5e-4, nesterov=True),
}


def make_optimizer(optimizer: str | Callable[..., Optimizer], parameters: Iterable[Tensor], lr: float) -> Optimizer:
    """Return an optimiser by name, or what a function of (parameters, lr=...) returns."""
    parameters = list(parameters)
    if callable(optimizer):
        return optimizer(parameters, lr=lr)
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    if parameters and parameters[0].is_cuda:  # one kernel for all parameters, and a rate that a graph can read
        more = {"fused": True} if optimizer in ("sgd", "nesterov") else {"fused": True, "capturable": True}
        return OPTIMIZERS[optimizer](parameters, lr=torch.tensor(lr, device=parameters[0].device), **more)
    return OPTIMIZERS[optimizer](parameters, lr=lr)


def name_of(choice: str | Callable[..., Any]) -> str:
    """Return the name of an optimiser or a schedule, for the settings of a run; of a function, its qualified name."""
    if isinstance(choice, str):
        return choice
    return f"{getattr(choice, '__module__', '')}.{getattr(choice, '__qualname__', type(choice).__qualname__)}"


def can_follow(optimizers: Iterable[Optimizer]) -> bool:
    """Return whether a captured step can follow a schedule of rates: only where these are tensors."""
    return all(isinstance(group["lr"], Tensor) for optimizer in optimizers for group in optimizer.param_groups)


class Rates:
    """Sets the learning rates of all optimisers to factors of their first rates."""

    def __init__(self, optimizers: Iterable[Optimizer], device: torch.device) -> None:
        self.optimizers, self.device = list(optimizers), device
        self.first = [float(group["lr"]) for group in self._groups()]

    def _groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def set(self, factor: float) -> None:
        for group, first in zip(self._groups(), self.first):
            if not isinstance(group["lr"], Tensor):
                group["lr"] = first * factor
            else:  # in place, where a captured step reads it; a rate from a checkpoint is on the CPU
                group["lr"] = group["lr"].to(self.device).fill_(first * factor)
