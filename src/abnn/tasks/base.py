"""What a task decides, and the registry of tasks.

A task says what a network's output means. A new one is a subclass of :class:`Task` in a file of its own: it is known by its name as
soon as the file is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.config import Objective
from abnn.errors import InputError, explain, unknown

TASKS: dict[str, Task] = {}


class Task(ABC):
    """What the network's output means: loss, outlier target, predictive distribution, and what an error is.

    Outputs come for every draw, [S, B, ...]; targets as a loader gives them, [B].
    """

    name: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            TASKS[cls.name] = cls()

    @abstractmethod
    def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
        """Return how many numbers the network says about an input, or raise an error for what it says instead."""

    @abstractmethod
    def id_loss(self, objective: Objective, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the loss of ordinary data, averaged over the batch."""

    @abstractmethod
    def outlier_loss(
        self, objective: Objective, outputs: Tensor, target: Tensor, severity: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """Return the loss of outliers, averaged over the batch, before its sign and weight."""

    @abstractmethod
    def samples(self, outputs: Tensor) -> Tensor:
        """Return the predictive distribution of every draw."""

    @abstractmethod
    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return for each input whether the mean over the draws is right, as numbers."""


def make_task(task: Any) -> Task:
    """Return a task by name, or the task itself."""
    if isinstance(task, Task):
        return task
    if not isinstance(task, str):
        raise InputError(explain("task", repr(task)[:80], "a name, or an abnn.tasks.Task"))
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    return TASKS[task]
