"""The settings of a fit beyond the few that everybody sets."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from abnn.errors import InputError, explain
from abnn.model.objective import Objective


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of :func:`abnn.fit`; None means what the model's preset says, where nothing else is written.

    freeze_backbone   whether the backbone stays as it is; if not, the default preset trains it by the same losses
    objective         the form of the losses
    backbone_lr       learning rate of a backbone that is not frozen
    optimizer         "adam", "adam-l2", "adamw", "sgd" or "nesterov", or a function of (parameters, lr=...) that returns one
    schedule          a name in abnn.train.optimizers.SCHEDULES, or a function from progress in [0, 1) to a factor of the rates
    value_range       (low, high) of the inputs, per channel or for all; None: as ``outliers`` were prepared, else measured
    gather_distance   whether to gather statistics of block features in the end; None: if frozen, or the score needs them
    precision         "32-true" or "bf16-mixed"
    compile           compile the network for the time of training, see :mod:`abnn.predict.compiling`
    accelerator       "auto", "cpu", "cuda" or "mps"
    devices           how many, in each of ``num_nodes`` machines; start several with torchrun
    checkpoint_every  steps between checkpoints, besides the one after every epoch; None: no others
    log               "csv" and/or "tensorboard", written under ``log_dir``
    """

    freeze_backbone: bool | None = None
    objective: Objective | None = None
    backbone_lr: float | None = None
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam"
    schedule: str | Callable[[float], float] | None = None
    value_range: tuple[Any, Any] | None = None
    gather_distance: bool | None = None
    precision: str = "32-true"
    compile: bool = False
    accelerator: str = "auto"
    devices: int | str = 1
    num_nodes: int = 1
    checkpoint_every: int | None = None
    log: Sequence[str] | str = ()
    log_dir: str | Path = "runs"

    def __post_init__(self) -> None:
        check_rate("backbone_lr", self.backbone_lr)
        for name in ("freeze_backbone", "gather_distance", "compile"):
            if getattr(self, name) not in (True, False, None):
                raise InputError(explain(name, repr(getattr(self, name)), "True, False or None"))
        if self.objective is not None and not isinstance(self.objective, Objective):
            fix = "abnn.preset(name).objective is that of a preset."
            raise InputError(explain("objective", repr(self.objective), "an abnn.Objective, or None", fix))
        if self.value_range is not None and not (
            isinstance(self.value_range, tuple | list) and len(self.value_range) == 2
        ):
            raise InputError(explain("value_range", repr(self.value_range), "(low, high), or None"))


def check_rate(argument: str, rate: Any) -> None:
    """Raise an error for a learning rate that is neither None nor a positive number."""
    if rate is not None and not (isinstance(rate, Real) and 0 < float(rate) < math.inf and rate is not True):
        raise InputError(explain(argument, repr(rate), "a positive number, or None for the preset's"))


DEFAULTS = FitConfig()
