"""What a task decides, and the registry of tasks.

A task says what a network's output means. A new one is a subclass of :class:`Task` in a file of its own: it is known by its name as
soon as the file is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from abnn.config import Objective
from abnn.errors import InputError, explain, unknown
from abnn.model.evidence import Evidence

TASKS: dict[str, Task] = {}


class Usual(NamedTuple):
    """What is usual on ordinary data: medians of ln v, mean of the last features, and the value that few of these exceed."""

    variances: Tensor
    last: Tensor
    ceiling: Tensor


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
    def id_loss(self, objective: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None = None) -> Tensor:
        """Return the loss of ordinary data, averaged over the batch; ``plain``: what the backbone says, where it counts."""

    @abstractmethod
    def outlier_loss(
        self,
        objective: Objective,
        outputs: Tensor,
        target: Tensor,
        severity: Tensor,
        generator: torch.Generator | None,
        plain: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of outliers, averaged over the batch, before its sign and weight.

        plain  what the backbone says about the inputs that the outliers were made from, where it counts
        """

    @abstractmethod
    def part_names(self, readout: bool) -> list[str]:
        """Return the names of :meth:`parts`; ``readout``: for a network with a last linear layer."""

    @abstractmethod
    def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
        """Return what the outputs say about how far to trust them, [B, parts], each larger = more uncertain.

        usual    what is usual on ordinary data
        visible  the classes that there are, by number; None: all
        """

    def hidden_classes(self, classes: int, rounds: int, generator: torch.Generator) -> list[Tensor]:
        """Return, for each round, which classes are taken away, as bools: their inputs are then like those of unknown classes.

        None where a task has no classes, or too few.
        """
        return []

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
