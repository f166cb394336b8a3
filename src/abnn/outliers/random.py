"""Random numbers that come from one generator, wherever it lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Rng:
    """Draws with the type and on the device of ``like``, made by ``generator`` on *its* device (None: global state).

    A generator on the CPU gives the same numbers whatever device the data is on; one on the data's device avoids copies.

    layout  of the caller's inputs, see :mod:`abnn.outliers.ranges`
    pads    whether sentences may get shorter: their padding is known, as -1
    """

    def __init__(
        self, generator: torch.Generator | None, like: Tensor, layout: str | None = None, pads: bool = False
    ) -> None:
        self._generator, self._like, self.layout, self.pads = generator, like, layout, pads
        self._device = like.device if generator is None else generator.device

    def uniform(self, *shape: int) -> Tensor:
        return self._place(torch.rand(shape, generator=self._generator, device=self._device))

    def normal(self, *shape: int) -> Tensor:
        return self._place(torch.randn(shape, generator=self._generator, device=self._device))

    def between(self, least: float, most: float, *shape: int) -> Tensor:
        return least + (most - least) * self.uniform(*shape)

    def number(self, least: float = 0.0, most: float = 1.0) -> float:
        """Return one number that the host needs to know."""
        device = "cpu" if self._generator is None else self._generator.device
        return least + (most - least) * torch.rand((), generator=self._generator, device=device).item()

    def choice(self, names: Sequence[T]) -> T:
        return names[min(int(self.number() * len(names)), len(names) - 1)]

    def integers(self, high: int, *shape: int) -> Tensor:
        numbers = torch.randint(high, shape, generator=self._generator, device=self._device)
        return numbers.to(self._like.device, non_blocking=True)

    def permutations(self, *shape: int) -> Tensor:
        """Return independent random permutations along the last dimension."""
        # Ties of float32 keys are rare and broken by position, which biases by less than 2^-24 per pair.
        return self.uniform(*shape).argsort(dim=-1)

    def _place(self, numbers: Tensor) -> Tensor:
        return numbers.to(self._like.device, self._like.dtype, non_blocking=True)
