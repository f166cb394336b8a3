"""Optimisers and the schedules of their learning rates, by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from abnn.errors import unknown

Schedule = Callable[[float], float]
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
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adam-l2": lambda parameters, lr, **more: torch.optim.Adam(parameters, lr=lr, weight_decay=5e-4, **more),
    "sgd": lambda parameters, lr, **more: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, **more),
    "nesterov": lambda parameters, lr, **more: torch.optim.SGD(
        parameters, lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True, **more
    ),
}


def make_optimizer(
    optimizer: str | Callable[..., torch.optim.Optimizer], parameters: Iterable[Tensor], lr: float
) -> torch.optim.Optimizer:
    """By name, or by a function of (parameters, lr=...)."""
    if not callable(optimizer) and optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    parameters = list(parameters)
    if callable(optimizer):
        return optimizer(parameters, lr=lr)
    if parameters and parameters[0].is_cuda:  # one kernel for all parameters, and a rate that a graph can read
        more = {"fused": True} if optimizer in ("sgd", "nesterov") else {"fused": True, "capturable": True}
        return OPTIMIZERS[optimizer](parameters, lr=torch.tensor(lr, device=parameters[0].device), **more)
    return OPTIMIZERS[optimizer](parameters, lr=lr)


def name_of(choice: str | Callable[..., Any]) -> str:
    """Of an optimiser or a schedule, by which a run is told from another; functions have their qualified name."""
    if isinstance(choice, str):
        return choice
    return f"{getattr(choice, '__module__', '')}.{getattr(choice, '__qualname__', type(choice).__qualname__)}"


def can_follow(optimizers: Iterable[torch.optim.Optimizer]) -> bool:
    """Whether a captured step can follow a schedule of rates: only where these are tensors."""
    return all(isinstance(group["lr"], Tensor) for optimizer in optimizers for group in optimizer.param_groups)


class Rates:
    """The learning rates of all optimisers as factors of what they were at the start."""

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer], device: torch.device) -> None:
        self.first = [float(group["lr"]) for each in optimizers.values() for group in each.param_groups]
        self.optimizers, self.device = optimizers, device
        self.factor: float | None = None

    def set(self, factor: float) -> None:
        if factor == self.factor:
            return
        groups = [group for each in self.optimizers.values() for group in each.param_groups]
        for group, first in zip(groups, self.first):
            _set_rate(group, first * factor, self.device)
        self.factor = factor


def _set_rate(group: dict[str, Any], rate: float, device: torch.device) -> None:
    """A rate that is a tensor keeps its place in memory, where a captured step reads it."""
    if isinstance(group["lr"], Tensor):
        if group["lr"].device != device:  # as it came from a checkpoint
            group["lr"] = group["lr"].to(device)
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate
