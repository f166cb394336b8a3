"""What a task decides, and the registry of tasks.

A task says what a network's output means. A new one is a subclass of :class:`Task` in a file of its own: it is known by its name as
soon as the file is imported.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from abnn.config import Objective
from abnn.errors import AttachError, InputError, explain, unknown
from abnn.model.evidence import Evidence

TASKS: dict[str, Task] = {}


class Usual(NamedTuple):
    """What is usual on ordinary data: medians of ln v, mean of the last features, and the value that few of these exceed.

    least   how far the last features are from their mean at least where their direction is more than rounding
    claims  the directions that classes claim, see :mod:`abnn.bayes.claims`; None: they follow from the weights of the evidence
    """

    variances: Tensor
    last: Tensor
    ceiling: Tensor
    least: Tensor | float = 1e-12
    claims: Tensor | None = None


class Task(ABC):
    """What the network's output means: loss, outlier target, predictive distribution, and what an error is.

    Outputs come for every draw, [S, B, ...]; targets as a loader gives them, [B].

    distribution  what a prediction consists of: "classes", "numbers" or "labels", see :mod:`abnn.predict.prediction`
    measure       what :meth:`right` is called in the history of a fit
    first_score   the score of predictions before a fit
    spread        what a fit learns about widths, see :mod:`abnn.tasks.spread`; None: nothing
    """

    name: ClassVar[str]
    distribution: ClassVar[str] = "classes"
    measure: ClassVar[str] = "accuracy"
    first_score: ClassVar[str] = "entropy"
    spread: Any = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" in cls.__dict__:
            TASKS[cls.name] = cls()

    @abstractmethod
    def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
        """Return how many numbers the network says about an input, or raise an error for what it says instead."""

    def options(self) -> dict[str, Any]:
        """Return what tells this task from others of its name, as JSON can hold it."""
        return {}

    def check_targets(self, y: Tensor, inputs: int, outputs: int, values: bool = True) -> Tensor:
        """Return the targets of a batch, or raise an error; ``outputs``: of :meth:`check_outputs`. Not ``values``: only shapes are looked at."""
        if y.ndim != 1 or len(y) != inputs or y.is_floating_point():
            actual = f"labels of shape {tuple(y.shape)} and type {y.dtype} for {inputs} inputs"
            fix = "Give class numbers, not one-hot."
            if tuple(y.shape) == (inputs, 1):
                fix = "Give y[:, 0]."
            elif tuple(y.shape) == (inputs,):
                fix = 'Give y.long(), or attach with task="regression" if they are amounts.'
            raise InputError(explain("loader", actual, "one whole number per input", fix))
        if values and y.numel() and (y.min() < 0 or y.max() >= outputs):
            actual = f"labels from {y.min().item()} to {y.max().item()}"
            accepted = f"0 to {outputs - 1}, the backbone's classes"
            raise InputError(explain("loader", actual, accepted, "Renumber the labels."))
        return y.long()

    def prepare(self, outputs: int, places: int, readout: int | None) -> None:
        """Get ready for one network: how much it says, at how many places variances are read, features of its last layer."""

    def measure_targets(self, targets: Tensor) -> None:
        """Look at some targets before a fit."""

    def average(self, outputs: Tensor, plain: bool = False) -> Tensor:
        """Return the output that stands for all draws, [B, ...]; ``plain``: whether the first is that of the plain network."""
        return outputs.mean(0)

    def id_loss(self, objective: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None = None) -> Tensor:
        """Return the loss of ordinary data, averaged over the batch; ``plain``: what the backbone says, where it counts."""
        return self._loss(objective, outputs, target, plain, None, None)

    def outlier_loss(
        self,
        objective: Objective,
        outputs: Tensor,
        target: Tensor,
        severity: Tensor,
        generator: torch.Generator | None,
        plain: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of outliers, averaged, before its sign and weight; ``plain``: what the backbone says of what they were made from."""
        return self._loss(objective, outputs, target, plain, severity, generator)

    def _loss(
        self, goal: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None, severity: Any, generator: Any
    ) -> Tensor:
        """Return both losses, for tasks that have one formula; ``severity``: of outliers, [B]. None: these are ordinary data."""
        raise NotImplementedError("a task has id_loss() and outlier_loss()")

    @abstractmethod
    def part_names(self, readout: bool) -> list[str]:
        """Return the names of :meth:`parts`; ``readout``: for a network with a last linear layer."""

    @abstractmethod
    def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
        """Return what the outputs say about how far to trust them, [B, parts], each larger = more uncertain.

        usual    what is usual on ordinary data
        visible  the classes that there are, by number; None: all
        """

    def told_classes(self, outputs: int) -> int:
        """Return how many classes the closed form tells apart, see :mod:`abnn.bayes.closed_form`; targets are their numbers."""
        return 0

    def hidden_classes(self, classes: int, rounds: int, generator: torch.Generator) -> list[Tensor]:
        """Return for each round which classes are taken away, as bools, as if nobody knew them; nothing where classes are none or too few."""
        return []

    def hidden_inputs(self, labels: Tensor, hidden: Tensor) -> Tensor:
        """Return which inputs belong to hidden classes, as bools."""
        return torch.zeros(len(labels), dtype=torch.bool, device=labels.device)

    def right_inputs(self, evidence: Evidence, labels: Tensor, hidden: Tensor) -> Tensor:
        """Return which ordinary inputs the network has right where some classes are hidden."""
        return self.right(evidence.plain[None], labels) > 0.5

    def errors(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return how wrong the mean over the draws is about each input, [B]; 0: right."""
        return 1 - self.right(outputs, target)

    @abstractmethod
    def samples(self, outputs: Tensor) -> Tensor:
        """Return the predictive distribution of every draw."""

    @abstractmethod
    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return for each input whether the mean over the draws is right, as numbers."""


def wrong_outputs(shape: tuple[int, ...], batch: int, accepted: str, fix: str = "") -> AttachError:
    """Return the error for a network whose outputs have another shape than a task needs."""
    actual = f"a network with outputs of shape {shape} for {batch} {'input' if batch == 1 else 'inputs'}"
    fix = fix or "Wrap it in a module that returns one row of logits for each input."
    return AttachError(explain("backbone", actual, accepted, fix))


def make_task(task: Any) -> Task:
    """Return a task by name, or the task itself, for one network: a task may learn something about it."""
    if isinstance(task, Task):
        return copy.copy(task)
    if not isinstance(task, str):
        raise InputError(explain("task", repr(task)[:80], "a name, or an abnn.tasks.Task"))
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    return copy.copy(TASKS[task])
