"""Train attachments, and the backbone with them if asked: a plain loop on Lightning Fabric.

Every random number of a run is a function of (seed, epoch, step, rank). So a run that was killed and resumes from its
last checkpoint sees the same batches, outliers and draws as one that was not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from abnn.attach import Attached
from abnn.errors import DivergedError, FileFormatError, InputError, explain, unknown
from abnn.files import read_tree, write_tree
from abnn.objective import Objective, preset
from abnn.outliers import Outliers, make_outliers, measure_range
from abnn.predict import Plain, check_inputs
from abnn.steps import Steps
from abnn.watch import Watch, make_loggers

Schedule = Callable[[float], float]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4),
}
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "steps": lambda progress: 0.1 ** int(4 * progress + 1e-9),
}
PRECISIONS = ("32-true", "bf16-mixed")
EXPLODED = 1e4


@dataclass
class History:
    """One row for each epoch: mean losses, KL, its growth on ID data, sigma, learning rate, seconds."""

    rows: list[dict[str, float]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, float]:
        return self.rows[-1]


def fit(
    model: Attached,
    loader: Iterable[Any],
    outliers: str | Outliers | Any | None = "preset",
    freeze_backbone: bool | None = None,
    *,
    objective: Objective | None = None,
    epochs: int = 5,
    lr: float = 1e-3,
    backbone_lr: float | None = None,
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam",
    schedule: str | Schedule = "cosine",
    value_range: tuple[Any, Any] | None = None,
    gather_distance: bool | None = None,
    seed: int = 0,
    precision: str = "32-true",
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
    freeze_backbone   None: what the preset says (the default preset freezes, "paper" and "authors" train it too)
    objective         the form of the losses; None: the preset's
    optimizer         "adam", "adamw", "sgd", or a function of (parameters, lr=...) that returns an optimiser
    schedule          "cosine", "constant", "steps" (a tenth after each quarter), or a function from progress in [0, 1)
                      to a factor
    value_range       (low, high) of the inputs, per channel or for all; None: measured from the first batches
    gather_distance   whether to gather the statistics of block features afterwards, in one pass; None: if the backbone
                      is frozen, since those of a jointly trained one say little
    precision         "32-true" or "bf16-mixed"
    devices           how many; start several with torchrun
    checkpoint        a file; written after every epoch, and every ``checkpoint_every`` steps. If it exists, the run goes
                      on from there and ends as if it had not been interrupted
    log               "csv" and/or "tensorboard", written under ``log_dir``
    """
    plan = _plan(model, objective, outliers, freeze_backbone, gather_distance)
    _check(epochs, lr, precision, checkpoint_every)
    from lightning_fabric import Fabric  # slow to import, and only needed here

    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=num_nodes, precision=precision)  # type: ignore[arg-type]
    fabric.launch()
    factor_at: Schedule = _by_name("schedule", schedule, SCHEDULES)
    make_optimizer = _by_name("optimizer", optimizer, OPTIMIZERS)
    with _preserved_state(model):
        fabric.to_device(model)
        batches = _Batches(loader, model, fabric, seed)
        if plan.outliers is not None and plan.outliers.needs_range:
            plan.outliers.prepare(*(value_range or measure_range(batches.first(10))))
        attachments = [parameter for _, parameter in model.attachment_parameters()]
        backbone = [parameter for _, parameter in model.backbone_parameters()]
        optimizers = {"attachments": make_optimizer(attachments, lr=lr)}
        if not plan.freeze:
            optimizers["backbone"] = make_optimizer(backbone, lr=backbone_lr or lr)
        steps = Steps(
            model, plan.objective, plan.outliers, fabric, optimizers["attachments"], optimizers.get("backbone")
        )
        settings = {
            "objective": plan.objective.to_dict(),
            "outliers": plan.outliers.to_config() if plan.outliers is not None else None,
            "freeze_backbone": plan.freeze,
            "epochs": epochs,
            "lr": lr,
            "backbone_lr": backbone_lr,
            "seed": seed,
            "precision": precision,
            "at": model.block_names,
        }
        run = _Run(model, optimizers, plan.freeze, settings, Path(checkpoint) if checkpoint else None)
        if fabric.world_size > 1:
            run.broadcast(fabric)
        run.resume()
        watch = Watch(model, epochs, batches.length, run.history.rows, progress and fabric.is_global_zero)
        watch.sums = dict(run.sums)
        loggers = make_loggers(log, log_dir) if fabric.is_global_zero else []
        base = {name: [group["lr"] for group in each.param_groups] for name, each in optimizers.items()}
        with watch.bar:
            for epoch in range(run.epoch, epochs):
                started = time.perf_counter()
                for step, x, y in batches.epoch(epoch, skip=run.step):
                    share = step / batches.length if batches.length else 0.0
                    factor = factor_at((epoch + share) / epochs)
                    for name, each in optimizers.items():
                        for group, first in zip(each.param_groups, base[name]):
                            group["lr"] = first * factor
                    generator = _seeded(seed, epoch, step, fabric.global_rank)
                    losses = steps(x, y, generator)
                    watch.step(losses, plan.objective.kl_factor(len(x)))
                    _stop_if_diverged(run, watch, losses, epoch, step)
                    run.step = step + 1
                    if checkpoint_every and run.step % checkpoint_every == 0 and fabric.is_global_zero:
                        run.sums = watch.sums
                        run.save()
                run.history.rows.append(watch.end_epoch(epoch, lr * factor, time.perf_counter() - started))
                for logger in loggers:
                    logger.log_metrics(run.history.last, step=epoch)
                    logger.save()
                run.epoch, run.step, run.sums = epoch + 1, 0, {}
                run.keep()
                if fabric.is_global_zero:
                    run.save()
        if plan.distance:
            model.distance.fit(batches.once())
    model.eval()
    model.resample(model.draws, seed=0)
    for logger in loggers:
        logger.finalize("success")
    return run.history


@dataclass
class _Plan:
    objective: Objective
    outliers: Outliers | None
    freeze: bool
    distance: bool


def _plan(
    model: Attached, objective: Objective | None, outliers: Any, freeze: bool | None, distance: bool | None
) -> _Plan:
    if not isinstance(model, Attached):
        raise InputError(explain("model", type(model).__name__, "what abnn.attach() returned", "Attach first."))
    chosen = preset(model.preset)
    if isinstance(outliers, str) and outliers == "preset":
        made: Outliers | None = make_outliers(chosen.outliers, **chosen.outlier_options)
    else:
        made = None if outliers is None else make_outliers(outliers)
    freeze = chosen.freeze_backbone if freeze is None else freeze
    goal = objective or chosen.objective
    if goal.outliers_update == "all" and freeze:
        raise InputError(explain("freeze_backbone", True, "False with outliers_update='all'"))
    return _Plan(goal, made, freeze, freeze if distance is None else distance)


def _check(epochs: int, lr: float, precision: str, checkpoint_every: int | None) -> None:
    if epochs < 1:
        raise InputError(explain("epochs", epochs, "a whole number of at least 1"))
    if not lr > 0:
        raise InputError(explain("lr", lr, "a positive number"))
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if checkpoint_every is not None and checkpoint_every < 1:
        raise InputError(explain("checkpoint_every", checkpoint_every, "a whole number of at least 1, or None"))


def _by_name(argument: str, value: Any, known: dict[str, Any]) -> Any:
    if callable(value):
        return value
    if value not in known:
        raise unknown(argument, value, known)
    return known[value]


class _Batches:
    """A loader whose batches are checked, and depend on (seed, epoch, step) alone."""

    def __init__(self, loader: Iterable[Any], model: Attached, fabric: Any, seed: int) -> None:
        if isinstance(loader, Tensor | str | bytes) or not isinstance(loader, Iterable) or isinstance(loader, Iterator):
            raise InputError(
                explain(
                    "loader",
                    type(loader).__name__,
                    "something that yields (x, y) batches every time it is iterated",
                    "Use torch.utils.data.DataLoader, or a list of batches.",
                )
            )
        self.generator = loader.generator if isinstance(loader, DataLoader) else None
        self.loader: Any = fabric.setup_dataloaders(loader) if isinstance(loader, DataLoader) else loader
        self.model, self.seed, self.rank, self.device = model, seed, fabric.global_rank, fabric.device
        self.length = len(self.loader) if isinstance(self.loader, Sized) else None
        if self.length == 0:
            raise InputError(
                explain("loader", "a loader without batches", "at least one batch", "Check data set and drop_last.")
            )

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Batches with their numbers; the first ``skip`` ones are loaded but not given."""
        seed_everything(self.seed, "order", epoch)
        if self.generator is not None:
            self.generator.manual_seed(_number(self.seed, "order", epoch))
        if hasattr(getattr(self.loader, "sampler", None), "set_epoch"):
            self.loader.sampler.set_epoch(epoch)
        iterator = iter(self.loader)
        step = 0
        while True:
            seed_everything(self.seed, "load", epoch, step, self.rank)
            try:
                batch = next(iterator)
            except StopIteration:
                break
            if step >= skip:
                x, y = check_batch(self.model, batch)
                seed_everything(self.seed, "step", epoch, step, self.rank)
                yield step, x.to(self.device), y.to(self.device)
            step += 1
        if step == 0:
            raise InputError(
                explain("loader", "a loader without batches", "at least one batch", "Check data set and drop_last.")
            )

    def first(self, most: int) -> Iterator[Tensor]:
        for step, x, _ in self.epoch(0):
            yield x
            if step + 1 == most:
                return

    def once(self) -> Iterator[tuple[Tensor, Tensor]]:
        return ((x, y) for _, x, y in self.epoch(0))


def check_batch(model: Attached | Plain, batch: Any) -> tuple[Tensor, Tensor]:
    """(x, y) of one batch, or an error that says what is wrong with it."""
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        given = f"{type(batch).__name__} of {len(batch)}" if isinstance(batch, tuple | list) else type(batch).__name__
        raise InputError(explain("loader", given, "pairs (inputs, labels)", "Let the data set return (x, y)."))
    x, y = batch
    x = check_inputs(model, x)
    y = torch.as_tensor(y) if not isinstance(y, Tensor) else y
    if y.ndim != 1 or len(y) != len(x) or y.is_floating_point():
        given = f"labels of shape {tuple(y.shape)} and type {y.dtype} for {len(x)} inputs"
        raise InputError(explain("loader", given, "one whole number per input", "Give class numbers, not one-hot."))
    if y.numel() and (y.min() < 0 or y.max() >= model.classes):
        given = f"labels from {y.min().item()} to {y.max().item()}"
        raise InputError(
            explain("loader", given, f"0 to {model.classes - 1}, the backbone's classes", "Renumber the labels.")
        )
    return x, y.long()


class _Run:
    """What a checkpoint holds: parameters, optimisers, history, and where the run stands."""

    def __init__(
        self,
        model: Attached,
        optimizers: dict[str, torch.optim.Optimizer],
        frozen: bool,
        settings: dict[str, Any],
        path: Path | None,
    ) -> None:
        self.model, self.optimizers, self.path = model, optimizers, path
        self.trained: dict[str, Tensor] = {f"attachments.{n}": p for n, p in model.attachment_parameters()}
        if not frozen:
            self.trained |= {f"backbone.{n}": p for n, p in model.backbone.state_dict(keep_vars=True).items()}
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}
        self.history = History()
        self.keep()

    def keep(self) -> None:
        """Remember the parameters as the last good ones."""
        self.good = {name: value.detach().clone() for name, value in self.trained.items()}

    def restore(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in values.items():
                self.trained[name].copy_(value)

    def broadcast(self, fabric: Any) -> None:
        """Start from the first process's values everywhere."""
        self.restore({name: fabric.broadcast(value.detach()) for name, value in self.trained.items()})

    def save(self) -> None:
        if self.path is not None:
            tree = {
                "format": "abnn-fit-1",
                "digest": self.digest,
                "epoch": self.epoch,
                "step": self.step,
                "sums": self.sums,
                "history": self.history.rows,
                "values": dict(self.trained),
                "optimizers": {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()},
            }
            write_tree(self.path, tree)

    def resume(self) -> None:
        if self.path is None or not self.path.exists():
            return
        tree = read_tree(self.path)
        if not isinstance(tree, dict) or tree.get("format") != "abnn-fit-1":
            raise FileFormatError(f"checkpoint: {self.path} is not a checkpoint of abnn.fit(); choose another file.")
        if tree["digest"] != self.digest:
            raise InputError(
                explain(
                    "checkpoint",
                    f"{self.path}, written by a run with other settings",
                    "a checkpoint of the same run",
                    "Give the same settings as then, choose another file, or delete it to start anew.",
                )
            )
        self.restore(tree["values"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(tree["optimizers"][name])
        self.epoch, self.step, self.sums = tree["epoch"], tree["step"], tree["sums"]
        self.history = History(tree["history"])
        self.keep()


def _stop_if_diverged(run: _Run, watch: Watch, losses: dict[str, Tensor], epoch: int, step: int) -> None:
    total = torch.stack([value.float() for value in losses.values()]).sum().item()
    sigma = watch.largest_sigma() if step % 20 == 0 else 0.0
    if math.isfinite(total) and sigma < EXPLODED:
        return
    run.restore(run.good)
    what = "a loss is not finite" if not math.isfinite(total) else f"a posterior sigma reached {sigma:.3g}"
    values = ", ".join(f"{name} {value.item():.4g}" for name, value in losses.items())
    raise DivergedError(
        f"fit: training diverged at epoch {epoch + 1}, step {step + 1}: {what} ({values}). The model was set back to its "
        f"state after {epoch} complete epochs. Lower lr, raise kl_weight, or check that inputs are scaled; maximised "
        "outlier losses have no bound and can always do this."
    )


@contextlib.contextmanager
def _preserved_state(model: Attached) -> Iterator[None]:
    """Leave global random states, gradient flags, draws and modes as they were, whatever happens inside."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    draws = model.draws
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, mode in modes:
            module.training = mode
        model.resample(draws, seed=0)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)


def _number(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7], "big")


def seed_everything(*key: object) -> None:
    """Set the global random states of torch, numpy and random to values that belong to the key."""
    number = _number(*key)
    torch.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def _seeded(*key: object) -> torch.Generator:
    return torch.Generator().manual_seed(_number("outliers", *key))
