"""What a task decides, and the registry of tasks.

A task says what a network's output means. A new one is a subclass of :class:`Task` in a file of its own. Importing that
file adds it to :data:`TASKS` by its name.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from abnn.config import Objective
from abnn.errors import AttachError, InputError, explain, unknown
from abnn.model.evidence import Evidence

TASKS: dict[str, Task] = {}
LEAST_LOG = -149 * math.log(2)  # ln of the smallest number in float32


class Usual(NamedTuple):
    """What is usual on ordinary data.

    variances  medians of ln v at every place
    last       the mean of the last features
    ceiling    the value that few of the last features exceed
    least      the shortest distance of the last features from their mean whose direction is more than rounding
    claims     the directions that classes claim, see :mod:`abnn.bayes.claims`; None: computed from the evidence's
               weight
    """

    variances: Tensor
    last: Tensor
    ceiling: Tensor
    least: Tensor | float = 1e-12
    claims: Tensor | None = None


class Task(ABC):
    """What a network's output means: loss, outlier target, predictive distribution, and what an error is.

    Outputs come with one row for every draw, [S, B, ...]. Targets come as a loader gives them, [B].

    distribution  what a prediction consists of: "classes", "numbers" or "labels", see :mod:`abnn.predict.prediction`
    measure       the name of :meth:`right` in the history of a fit
    first_score   the name of the default score before a fit
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
        """Return how many numbers the network gives for one input. Outputs that do not fit the task are an error.

        shape    of the outputs
        batch    how many inputs they belong to
        outputs  the outputs themselves; None: only the shape can be checked
        """

    def options(self) -> dict[str, Any]:
        """Return the options of this task, as JSON can hold them. Name and options say which task it is."""
        return {}

    def check_targets(self, y: Tensor, inputs: int, outputs: int, values: bool = True) -> Tensor:
        """Return the targets of a batch. Targets that do not fit the task are an error.

        inputs   how many inputs the batch has
        outputs  what :meth:`check_outputs` returned
        values   whether to check the values as well, not only shape and type
        """
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
        """Prepare the task for one network.

        outputs  what :meth:`check_outputs` returned
        places   at how many places variances are read
        readout  how many features go into the last linear layer; None: there is none
        """

    def measure_targets(self, targets: Tensor) -> None:
        """Learn the units of targets from some of them, before a fit. Not every task needs that."""

    def average(self, outputs: Tensor, plain: bool = False) -> Tensor:
        """Return one output for all draws, [B, ...].

        plain  whether the first draw is the plain network
        """
        return outputs.mean(0)

    def id_loss(self, objective: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None = None) -> Tensor:
        """Return the loss of ordinary data, averaged over the batch.

        plain  the backbone's outputs, [B, ...]; None: the objective does not need them
        """
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
        """Return the loss of outliers, averaged over the batch, before its sign and weight.

        target, plain  labels of the inputs that the outliers were made from, and the backbone's outputs for these
        """
        return self._loss(objective, outputs, target, plain, severity, generator)

    def _loss(
        self, goal: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None, severity: Any, generator: Any
    ) -> Tensor:
        """Return both losses, for tasks that have one formula for both.

        severity  of outliers, [B]; None: these are ordinary data
        """
        raise NotImplementedError("a task has id_loss() and outlier_loss()")

    @abstractmethod
    def part_names(self, readout: bool) -> list[str]:
        """Return the names of the columns of :meth:`parts`; ``readout``: whether there is a last linear layer."""

    @abstractmethod
    def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
        """Return the parts of the score that come from the outputs, [B, parts]. Each is larger = more uncertain.

        usual    what is usual on ordinary data
        visible  the numbers of the classes that are not hidden; None: all
        """

    def told_classes(self, outputs: int) -> int:
        """Return how many classes the closed form tells apart, see :mod:`abnn.bayes.closed_form`; 0: none.

        Targets are the numbers of these classes.
        """
        return 0

    def hidden_classes(self, classes: int, rounds: int, generator: torch.Generator) -> list[Tensor]:
        """Return for each round which classes are hidden, as bools, [classes]; no rounds with too few classes."""
        return []

    def hidden_inputs(self, labels: Tensor, hidden: Tensor) -> Tensor:
        """Return which inputs belong to hidden classes, as bools, [B]."""
        return torch.zeros(len(labels), dtype=torch.bool, device=labels.device)

    def right_inputs(self, evidence: Evidence, labels: Tensor, hidden: Tensor) -> Tensor:
        """Return which inputs the plain network predicts right while some classes are hidden, as bools, [B]."""
        return self.right(evidence.plain[None], labels) > 0.5

    def errors(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return how wrong the mean over the draws is about each input, [B]; 0 means right."""
        return 1 - self.right(outputs, target)

    @abstractmethod
    def samples(self, outputs: Tensor) -> Tensor:
        """Return the predictive distribution of every draw, [S, B, ...]."""

    @abstractmethod
    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return whether the mean over the draws is right about each input, as numbers, [B]."""


def wrong_outputs(shape: tuple[int, ...], batch: int, accepted: str, fix: str = "") -> AttachError:
    """Return the error for a network whose outputs have another shape than a task accepts."""
    actual = f"a network with outputs of shape {shape} for {batch} {'input' if batch == 1 else 'inputs'}"
    fix = fix or "Wrap it in a module that returns one row of logits for each input."
    return AttachError(explain("backbone", actual, accepted, fix))


def make_task(task: Any) -> Task:
    """Return a copy of a task, or of the one with this name. Each network needs its own: a task may learn from data."""
    if isinstance(task, Task):
        return copy.copy(task)
    if not isinstance(task, str):
        raise InputError(explain("task", repr(task)[:80], "a name, or an abnn.tasks.Task"))
    if task not in TASKS:
        raise unknown("task", task, TASKS)
    return copy.copy(TASKS[task])
