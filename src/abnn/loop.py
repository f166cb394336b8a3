"""One training loop for everything that is trained here, on Lightning Fabric.

Every random number of a run is a function of (seed, epoch, step, rank). So a run that was killed and resumes from its last
checkpoint sees the same batches, outliers and draws as one that was not, and on the CPU ends bit-identical.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.batches import Batches
from abnn.errors import DivergedError, FileFormatError, InputError, explain, unknown
from abnn.files import Tree, read_tree, write_tree
from abnn.randomness import seeded
from abnn.watch import Watch, make_loggers

Schedule = Callable[[float], float]
SCHEDULES: dict[str, Schedule] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: 0.5 * (1 + math.cos(math.pi * progress)),
    "cycle": lambda progress: (
        min(1.0, 0.04 + 3.2 * progress) * 0.5 * (1 + math.cos(math.pi * max(0.0, progress - 0.3) / 0.7))
    ),
    "steps": lambda progress: 0.1 ** int(4 * progress + 1e-9),
    "thirds": lambda progress: 0.1 ** int(3 * progress + 1e-9),
    "fifths": lambda progress: 0.1 ** sum(progress + 1e-9 >= share for share in (0.4, 0.6, 0.8)),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adam-l2": lambda parameters, lr, **more: torch.optim.Adam(parameters, lr=lr, weight_decay=5e-4, **more),
    "sgd": lambda parameters, lr, **more: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, **more),
    "nesterov": lambda parameters, lr, **more: torch.optim.SGD(
        parameters, lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True, **more
    ),
}
FORMAT = "abnn-checkpoint-1"
PRECISIONS = ("32-true", "bf16-mixed")
LOOK_EVERY = 100


@dataclass
class History:
    """One row for each epoch: mean losses, learning rate, seconds, and what the trained thing adds."""

    rows: list[dict[str, float]] = field(default_factory=list)

    @property
    def last(self) -> dict[str, float]:
        return self.rows[-1]


class Trainable(ABC):
    """Something that the loop can train: what one step does, and what a checkpoint must hold."""

    optimizers: dict[str, torch.optim.Optimizer]
    title: str = "training"
    capturable: bool = False
    """Whether a step is the same sequence of operations on the device every time, so that it can be captured on CUDA."""

    @abstractmethod
    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Update by one batch; returns losses to show. Random numbers: torch's global state, or ``generator``."""

    def after_step(self) -> None:
        """Called after every step, for what must not be captured: what depends on the number of the step."""

    @abstractmethod
    def values(self) -> dict[str, Tensor]:
        """Every tensor that training changes in place: parameters, and buffers where they count."""

    def more(self) -> Tree:
        """Anything else that a resumed run needs (multipliers, collected samples), as files.write_tree can hold it."""
        return None

    def restore_more(self, more: Tree) -> None:
        """Take back what :meth:`more` gave."""

    def begin_epoch(self, epoch: int, batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        """Called before every epoch; ``batches()`` passes once over the training data in a fixed order."""

    def end_epoch(self, epoch: int, means: dict[str, float]) -> dict[str, float]:
        """Further columns for the row of this epoch, from the means of its losses."""
        return {}

    def trouble(self) -> str | None:
        """What is wrong with the current state, if something is; asked now and then."""
        return None


def make_fabric(precision: str, accelerator: str, devices: int | str, num_nodes: int) -> Any:
    """Lightning Fabric, launched."""
    from lightning_fabric import Fabric  # slow to import, and only needed for training

    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    fabric = Fabric(accelerator=accelerator, devices=devices, num_nodes=num_nodes, precision=precision)  # type: ignore[arg-type]
    fabric.launch()
    return fabric


def make_optimizer(
    optimizer: str | Callable[..., torch.optim.Optimizer], parameters: Iterable[Tensor], lr: float
) -> torch.optim.Optimizer:
    """By name, or by a function of (parameters, lr=...)."""
    if not callable(optimizer) and optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    parameters = list(parameters)
    if callable(optimizer):
        return optimizer(parameters, lr=lr)
    if parameters and parameters[0].is_cuda:  # one kernel for all parameters, and a rate that a graph can read
        more = {"fused": True} if optimizer in ("sgd", "nesterov") else {"fused": True, "capturable": True}
        return OPTIMIZERS[optimizer](parameters, lr=torch.tensor(lr, device=parameters[0].device), **more)
    return OPTIMIZERS[optimizer](parameters, lr=lr)


def training(
    trainable: Trainable,
    batches: Batches,
    fabric: Any,
    epochs: int,
    settings: dict[str, Any],
    schedule: str | Schedule = "cosine",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    log: Sequence[str] | str = (),
    log_dir: str | Path = "runs",
    progress: bool = True,
) -> Generator[None, None, History]:
    """Train for ``epochs`` epochs, and pause after every step, so that several runs can take turns; see :mod:`abnn.lanes`.

    settings  identify the run, so that no other run goes on from its checkpoint
    """
    if epochs < 1:
        raise InputError(explain("epochs", epochs, "a whole number of at least 1"))
    if checkpoint_every is not None and checkpoint_every < 1:
        raise InputError(explain("checkpoint_every", checkpoint_every, "a whole number of at least 1, or None"))
    if not callable(schedule) and schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    factor_at = schedule if callable(schedule) else SCHEDULES[schedule]
    run = _Run(trainable, {**settings, "epochs": epochs, "seed": seed}, Path(checkpoint) if checkpoint else None)
    if fabric.world_size > 1:
        run.broadcast(fabric)
    rates = _Rates(trainable.optimizers, fabric.device)
    run.resume()
    on_cuda = fabric.device.type == "cuda"
    captured = None
    if on_cuda and trainable.capturable and fabric.world_size == 1:
        from abnn.capture import CapturedStep

        captured = CapturedStep(trainable)
    loggers = make_loggers(log, log_dir) if fabric.is_global_zero else []
    watch = Watch(trainable.title, epochs, batches.length, run.epoch, progress and fabric.is_global_zero)
    watch.sums = dict(run.sums)
    with watch.bar, _fastest_kernels(on_cuda):
        for epoch in range(run.epoch, epochs):
            started, factor = time.perf_counter(), 1.0
            if run.step == 0:
                trainable.begin_epoch(epoch, batches.once)
            for step, x, y in batches.epoch(epoch, skip=run.step):
                share = step / batches.length if batches.length else 0.0
                factor = factor_at((epoch + share) / epochs)
                rates.set(factor)
                if on_cuda:
                    losses = captured(x, y) if captured is not None else trainable.step(x, y, None)
                else:
                    losses = trainable.step(x, y, seeded("outliers", seed, epoch, step, fabric.global_rank))
                trainable.after_step()
                watch.step(losses)
                run.step = step + 1
                if not on_cuda or step % LOOK_EVERY == 0:  # looking at a loss makes the host wait for the device
                    watch.flush()
                    _stop_if_diverged(run, losses, epoch, step)
                if checkpoint_every and run.step % checkpoint_every == 0 and fabric.is_global_zero:
                    run.sums = watch.flush()
                    run.save()
                yield
            means = watch.end_epoch()
            row = {"epoch": epoch + 1, **means, **trainable.end_epoch(epoch, means), "lr_factor": factor}
            run.history.rows.append({**row, "seconds": time.perf_counter() - started})
            for logger in loggers:
                logger.log_metrics(run.history.last, step=epoch)
                logger.save()
            run.epoch, run.step, run.sums = epoch + 1, 0, {}
            run.keep()
            if fabric.is_global_zero:
                run.save()
    for logger in loggers:
        logger.finalize("success")
    return run.history


@contextlib.contextmanager
def _fastest_kernels(on_cuda: bool) -> Iterator[None]:
    """Let cuDNN measure which convolution is fastest for each shape; the shapes of training do not change."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or on_cuda
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class _Rates:
    """The learning rates of all optimisers as factors of what they were at the start."""

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer], device: torch.device) -> None:
        self.first = [float(group["lr"]) for each in optimizers.values() for group in each.param_groups]
        self.optimizers, self.device = optimizers, device
        self.factor: float | None = None

    def set(self, factor: float) -> None:
        if factor == self.factor:
            return
        groups = [group for each in self.optimizers.values() for group in each.param_groups]
        for group, first in zip(groups, self.first):
            _set_rate(group, first * factor, self.device)
        self.factor = factor


def _set_rate(group: dict[str, Any], rate: float, device: torch.device) -> None:
    """A rate that is a tensor keeps its place in memory, where a captured step reads it."""
    if isinstance(group["lr"], Tensor):
        if group["lr"].device != device:  # as it came from a checkpoint
            group["lr"] = group["lr"].to(device)
        group["lr"].fill_(rate)
    else:
        group["lr"] = rate


class _Run:
    """Where a run stands, and its checkpoint."""

    def __init__(self, trainable: Trainable, settings: dict[str, Any], path: Path | None) -> None:
        self.trainable, self.path = trainable, path
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}
        self.history = History()
        self.keep()

    def keep(self) -> None:
        """Remember the values as the last good ones."""
        self.good = {name: value.detach().clone() for name, value in self.trainable.values().items()}

    def restore(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.trainable.values().items():
                value.copy_(values[name])

    def broadcast(self, fabric: Any) -> None:
        """Start from the first process's values everywhere."""
        self.restore({name: fabric.broadcast(value.detach()) for name, value in self.trainable.values().items()})

    def save(self) -> None:
        if self.path is not None:
            tree = {
                "format": FORMAT,
                "digest": self.digest,
                "epoch": self.epoch,
                "step": self.step,
                "sums": self.sums,
                "history": self.history.rows,
                "values": self.trainable.values(),
                "more": self.trainable.more(),
                "optimizers": {name: each.state_dict() for name, each in self.trainable.optimizers.items()},
            }
            write_tree(self.path, tree)

    def resume(self) -> None:
        if self.path is None or not self.path.exists():
            return
        tree = read_tree(self.path)
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise FileFormatError(f"checkpoint: {self.path} is not a checkpoint of this package; choose another file.")
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
        self.trainable.restore_more(tree["more"])
        for name, optimizer in self.trainable.optimizers.items():
            optimizer.load_state_dict(tree["optimizers"][name])
        self.epoch, self.step, self.sums = tree["epoch"], tree["step"], tree["sums"]
        self.history = History(tree["history"])
        self.keep()


def _stop_if_diverged(run: _Run, losses: dict[str, Tensor], epoch: int, step: int) -> None:
    finite = bool(torch.stack([*losses.values()]).isfinite().all())
    trouble = "a loss is not finite" if not finite else run.trainable.trouble() if step % 20 == 0 else None
    if trouble is None:
        return
    run.restore(run.good)
    values = ", ".join(f"{name} {value.item():.4g}" for name, value in losses.items())
    raise DivergedError(
        f"training diverged at epoch {epoch + 1}, step {step + 1}: {trouble} ({values}). The model was set back to its "
        f"state after {epoch} complete epochs. Lower lr, raise kl_weight, or check that inputs are scaled; maximised "
        "outlier losses have no bound and can always do this."
    )
