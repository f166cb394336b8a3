"""Fit attachments, and the backbone with them if asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from abnn.attached import Attached
from abnn.config import Objective, preset
from abnn.errors import InputError, explain, whole_seed
from abnn.outliers import Outliers, make_outliers
from abnn.predict.compiling import compiled
from abnn.store.folder import fingerprint
from abnn.train.batches import Batches
from abnn.train.knowledge import recall, warn_if_lost
from abnn.train.lanes import to_end
from abnn.train.loop import make_fabric, training
from abnn.train.optimizers import Schedule, make_optimizer, name_of
from abnn.train.randomness import preserved_random_state
from abnn.train.steps import Steps
from abnn.train.trainable import History


def fit(
    model: Attached,
    loader: Iterable[Any],
    outliers: str | Outliers | Any | None = "preset",
    freeze_backbone: bool | None = None,
    *,
    objective: Objective | None = None,
    epochs: int = 5,
    lr: float | None = None,
    backbone_lr: float | None = None,
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam",
    schedule: str | Schedule | None = None,
    value_range: tuple[Any, Any] | None = None,
    gather_distance: bool | None = None,
    seed: int = 0,
    precision: str = "32-true",
    compile: bool = False,
    accelerator: str = "auto",
    devices: int | str = 1,
    num_nodes: int = 1,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    log: Sequence[str] | str = (),
    log_dir: str | Path = "runs",
    progress: bool = True,
) -> History:
    """Fit the attachments of ``model`` to ordinary data plus made-up outliers.

    loader            yields (x, y): inputs as the model was attached with, labels as class numbers
    outliers          a name (see abnn.outliers), a generator, a data set of real outliers, or None for none;
                      "preset": what the model's preset says
    freeze_backbone   None: what the preset says (the default preset freezes, "paper" and "authors" train it too). Not frozen,
                      the default trains it by the same losses as the attachments
    objective         the form of the losses; None: the preset's
    lr, backbone_lr   learning rates of the attachments, and of a backbone that is not frozen; None: the preset's. If
                      attachments overwrite what a frozen backbone knows, the fit begins again at a third, see
                      :mod:`abnn.train.rescue`
    optimizer         "adam", "adam-l2", "adamw", "sgd" or "nesterov", or a function of (parameters, lr=...) that returns one
    schedule          a name in abnn.optimizers.SCHEDULES, such as "cosine" or "constant", or a function from progress in [0, 1)
                      to a factor; None: the preset's. The default preset warms up ("cycle")
    value_range       (low, high) of the inputs, per channel or for all; None: that of ``outliers`` if its prepare() set one,
                      else measured from the first batches
    gather_distance   whether to gather the statistics of block features afterwards, in one pass; None: if the backbone
                      is frozen or the preset's score needs them
    precision         "32-true" or "bf16-mixed"
    compile           compile the network for the time of training; see :mod:`abnn.predict.compiling`
    accelerator       "auto", "cpu", "cuda" or "mps"
    devices           how many; start several with torchrun
    checkpoint        a file; written after every epoch, and every ``checkpoint_every`` steps. If it exists, the run goes
                      on from there and ends as if it had not been interrupted; see :mod:`abnn.train.loop` about workers of
                      the loader that stay
    log               "csv" and/or "tensorboard", written under ``log_dir``
    """
    if not isinstance(model, Attached):
        raise InputError(explain("model", type(model).__name__, "what abnn.attach() returned", "Attach first."))
    for argument, given in (("lr", lr), ("backbone_lr", backbone_lr)):
        if given is not None and not (isinstance(given, Real) and 0 < given < math.inf and given is not True):
            raise InputError(explain(argument, repr(given), "a positive number, or None for the preset's"))
    seed = whole_seed(seed)
    if objective is not None and not isinstance(objective, Objective):
        fix = "abnn.preset(name).objective is that of a preset."
        raise InputError(explain("objective", repr(objective), "an abnn.objective.Objective, or None", fix))
    if value_range is not None and not (isinstance(value_range, tuple | list) and len(value_range) == 2):
        raise InputError(explain("value_range", repr(value_range), "(low, high), or None"))
    chosen = preset(model.preset)
    lr = chosen.lr if lr is None else lr
    backbone_lr = chosen.backbone_lr if backbone_lr is None else backbone_lr
    schedule = chosen.schedule if schedule is None else schedule
    goal = objective or chosen.objective
    freeze = chosen.freeze_backbone if freeze_backbone is None else freeze_backbone
    if goal.outliers_update == "all" and freeze:
        raise InputError(explain("freeze_backbone", True, "False with outliers_update='all'"))
    maker = _make_outliers(outliers, model.preset)
    fabric = make_fabric(precision, accelerator, devices, num_nodes)
    with torch.enable_grad(), _preserved(model), ExitStack() as stack:
        fabric.to_device(model)
        batches = Batches(loader, model, fabric, seed)
        if maker is not None:
            maker = maker.with_range(value_range, batches.value_range)
        known = None if freeze else recall(model, batches.once())
        stack.enter_context(compiled([model.net], compile))
        optimizers = {"attachments": make_optimizer(optimizer, (p for _, p in model.attachment_parameters()), lr)}
        if not freeze:
            optimizers["backbone"] = make_optimizer(optimizer, model.learning_backbone_parameters(), backbone_lr)
        settings = {
            "objective": goal.to_dict(),
            "outliers": maker.to_config() if maker is not None else None,
            "freeze_backbone": freeze,
            "lr": lr,
            "backbone_lr": backbone_lr,
            "precision": precision,
            "at": model.block_names,
            "kind": model.spec.kind,
        }
        if checkpoint is not None:
            settings |= {"optimizer": name_of(optimizer), "attachments": _shapes(model)}
            # One that is trained as well has changed when an interrupted run goes on with the same model.
            settings["backbone"] = fingerprint(model.backbone) if freeze else None
            if maker is not None and (digests := maker.data_digests()):
                settings["outlier_data"] = digests
        watching = (checkpoint, checkpoint_every, log, log_dir, progress)
        steps = Steps(model, goal, maker, fabric, optimizers)
        model.triage = None  # thresholds and statistics are of attachments as they were
        model.distance.forget()
        history = to_end(training(steps, batches, fabric, epochs, settings, schedule, seed, *watching))
        stack.close()  # compiled for training alone
        if chosen.gathers(freeze) if gather_distance is None else gather_distance:
            model.distance.fit(batches.once(), fabric)
        warn_if_lost(model, batches.once(), known)
    model.eval()
    return history


def _make_outliers(outliers: Any, name: str) -> Outliers | None:
    if outliers is None:
        return None
    if isinstance(outliers, str) and outliers == "preset":
        chosen = preset(name)
        return make_outliers(chosen.outliers, **chosen.outlier_options)
    return make_outliers(outliers)


def _shapes(model: Attached) -> list[Any]:
    return [[name, list(parameter.shape)] for name, parameter in model.attachment_parameters()]


@contextmanager
def _preserved(model: Attached) -> Iterator[None]:
    """Leave random states, gradient flags, modes and the number of draws as they were, whatever happens inside."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    draws = model.draws
    try:
        with preserved_random_state():
            yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, mode in modes:
            module.training = mode
        model.resample(draws, seed=0)
