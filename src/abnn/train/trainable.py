"""What the training loop takes and gives back: a trainable with a step, and a history with a row for each epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from abnn.tensors import Tree

Passes = Callable[[], Iterator[tuple[Any, Tensor]]]
"""A function whose result passes once over the training data, in a fixed order."""


class Trainable(ABC):
    """What the loop trains: it says what one step does, and what a checkpoint must hold."""

    optimizers: dict[str, torch.optim.Optimizer]
    title: str = "training"
    capturable: bool = False
    """Whether :meth:`step_with` runs the same operations on the device every time, so that CUDA can capture it."""

    @abstractmethod
    def step(self, x: Any, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Update by one batch and return losses to show. Random numbers: ``generator``, or torch's global state."""

    def prepare_step(self, x: Any, y: Tensor) -> tuple[Tensor, ...]:
        """Return what a step needs beside its batch and cannot capture. Random numbers are of torch's global state."""
        return ()

    def step_with(self, x: Any, y: Tensor, *prepared: Tensor) -> dict[str, Tensor]:
        """Do the same as :meth:`step`, with what :meth:`prepare_step` returned."""
        return self.step(x, y, None)

    def after_step(self) -> None:
        """Do what depends on the number of the step, and so must not be captured. Called after every step."""

    @abstractmethod
    def values(self) -> dict[str, Tensor]:
        """Return every tensor that training changes in place: parameters, and buffers where they count."""

    def more(self) -> Tree:
        """Return what else a resumed run needs (multipliers, collected samples), as tensors.write_tree can hold it."""
        return None

    def restore_more(self, more: Tree) -> None:
        """Take back what :meth:`more` gave."""

    def begin_epoch(self, epoch: int, batches: Passes) -> None:
        """Called before every epoch."""

    def end_epoch(self, epoch: int, means: dict[str, float]) -> dict[str, float]:
        """Return further columns for the history's row of this epoch, from the means of its losses."""
        return {}

    def trouble(self) -> str | None:
        """Return what is wrong with the current state, or None. The loop asks now and then."""
        return None


@dataclass(repr=False)
class History:
    """One row for each epoch: mean losses, learning rate, seconds, and the columns that a trainable adds."""

    rows: list[dict[str, float]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, float]:
        return self.rows[-1]

    def __repr__(self) -> str:
        """The last row: a notebook shows what abnn.fit() returns."""
        last = ", ".join(f"{name} {value:.4g}" for name, value in self.last.items()) if self.rows else "no rows"
        return f"History({last})"
