"""What the training loop takes, and what it gives back: something with a step, and a row of numbers for each epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from abnn.tensors import Tree

Passes = Callable[[], Iterator[tuple[Any, Tensor]]]
"""Passes once over the training data in a fixed order, whenever it is called."""


class Trainable(ABC):
    """Something that the loop can train: what one step does, and what a checkpoint must hold."""

    optimizers: dict[str, torch.optim.Optimizer]
    title: str = "training"
    capturable: bool = False
    """Whether :meth:`step_with` is the same sequence of operations on the device every time, so that it can be captured on CUDA."""

    @abstractmethod
    def step(self, x: Any, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Update by one batch; returns losses to show. Random numbers: torch's global state, or ``generator``."""

    def beforehand(self, x: Any, y: Tensor) -> tuple[Tensor, ...]:
        """What a step needs beside its batch that cannot be captured; random numbers are of torch's global state."""
        return ()

    def step_with(self, x: Any, y: Tensor, *made: Tensor) -> dict[str, Tensor]:
        """The same as :meth:`step`, with what :meth:`beforehand` has returned."""
        return self.step(x, y, None)

    def after_step(self) -> None:
        """Called after every step, for what must not be captured: what depends on the number of the step."""

    @abstractmethod
    def values(self) -> dict[str, Tensor]:
        """Every tensor that training changes in place: parameters, and buffers where they count."""

    def more(self) -> Tree:
        """Anything else that a resumed run needs (multipliers, collected samples), as tensors.write_tree can hold it."""
        return None

    def restore_more(self, more: Tree) -> None:
        """Take back what :meth:`more` gave."""

    def begin_epoch(self, epoch: int, batches: Passes) -> None:
        """Called before every epoch."""

    def end_epoch(self, epoch: int, means: dict[str, float]) -> dict[str, float]:
        """Further columns for the row of this epoch, from the means of its losses."""
        return {}

    def trouble(self) -> str | None:
        """What is wrong with the current state, if something is; asked now and then."""
        return None


@dataclass(repr=False)
class History:
    """One row for each epoch: mean losses, learning rate, seconds, and what the trained thing adds."""

    rows: list[dict[str, float]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, float]:
        return self.rows[-1]

    def __repr__(self) -> str:
        """The last row: a notebook shows what abnn.fit() returns."""
        last = ", ".join(f"{name} {value:.4g}" for name, value in self.last.items()) if self.rows else "no rows"
        return f"History({last})"
