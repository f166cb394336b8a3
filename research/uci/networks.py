"""Many networks of one hidden layer, trained side by side: a stack of matrices instead of a loop over networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

RATE = 0.01


@dataclass(frozen=True)
class Stack:
    """M networks relu(x A + a) B + b: A [M, F, H], a [M, 1, H], B [M, H, 1], b [M, 1, 1]."""

    first: Tensor
    first_bias: Tensor
    last: Tensor
    last_bias: Tensor

    def __call__(self, x: Tensor, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """[M, N] of inputs [M, N, F]; hidden units are left out at random with probability ``dropout``."""
        hidden = torch.relu(torch.baddbmm(self.first_bias, x, self.first))
        if dropout:
            hidden = hidden * (torch.rand(hidden.shape, generator=generator) >= dropout) / (1 - dropout)
        return torch.baddbmm(self.last_bias, hidden, self.last)[..., 0]

    def pick(self, rows: list[int]) -> Stack:
        return Stack(self.first[rows], self.first_bias[rows], self.last[rows], self.last_bias[rows])

    def module(self, number: int) -> nn.Sequential:
        """One of them as a module."""
        features, hidden = self.first.shape[1:]
        first, last = nn.Linear(features, hidden), nn.Linear(hidden, 1)
        with torch.no_grad():
            first.weight.copy_(self.first[number].T)
            first.bias.copy_(self.first_bias[number, 0])
            last.weight.copy_(self.last[number].T)
            last.bias.copy_(self.last_bias[number, 0])
        return nn.Sequential(first, nn.ReLU(), last).eval()


def plan(inputs: int) -> tuple[int, int]:
    """Batch size and epochs: 2,000 steps, or 40 epochs as in the literature where that is more."""
    batch = 32 if inputs < 2000 else 256
    return batch, max(40, 2000 // (inputs // batch)) if inputs < 20_000 else 40


def train(x: Tensor, y: Tensor, hidden: int, decay: Tensor, dropout: Tensor, seed: int) -> Stack:
    """Return networks trained on inputs [M, N, F] and targets [M, N]; Adam with one cycle of the rate.

    decay    of the squares of all weights, [M]
    dropout  the share of hidden units that are left out in every step, [M]
    """
    random = torch.Generator().manual_seed(seed)
    count, inputs, features = x.shape
    batch, epochs = plan(inputs)

    def uniform(*shape: int, fan_in: int) -> Tensor:
        return ((2 * torch.rand(*shape, generator=random) - 1) / fan_in**0.5).requires_grad_()

    stack = Stack(
        uniform(count, features, hidden, fan_in=features),
        uniform(count, 1, hidden, fan_in=features),
        uniform(count, hidden, 1, fan_in=hidden),
        uniform(count, 1, 1, fan_in=hidden),
    )
    parameters = [stack.first, stack.first_bias, stack.last, stack.last_bias]
    optimizer = torch.optim.Adam(parameters, RATE)
    steps = inputs // batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps)
    networks, keep = torch.arange(count)[:, None], 1 - dropout[:, None, None]
    for _ in range(epochs):
        order = torch.rand(count, inputs, generator=random).argsort(1)
        for rows in order[:, : steps * batch].split(batch, dim=1):
            hidden_units = torch.relu(torch.baddbmm(stack.first_bias, x[networks, rows], stack.first))
            if bool(dropout.any()):
                hidden_units = hidden_units * (torch.rand(hidden_units.shape, generator=random) < keep) / keep
            error = (
                (torch.baddbmm(stack.last_bias, hidden_units, stack.last)[..., 0] - y[networks, rows]).square().mean(1)
            )
            size = stack.first.square().sum((1, 2)) + stack.last.square().sum((1, 2))
            optimizer.zero_grad()
            (error + decay * size).sum().backward()
            optimizer.step()
            schedule.step()
    return Stack(*(parameter.detach() for parameter in parameters))
