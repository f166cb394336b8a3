"""One training loop for everything that is trained here, on Lightning Fabric.

Every random number of a run is a function of (seed, epoch, step, rank). So a run that was killed and resumes from its
last checkpoint sees the same batches, outliers and draws as one that was not. On the CPU it ends bit-identical. The
exception is a loader that keeps its workers from epoch to epoch: random numbers of the data set in these workers are
not drawn anew, and a warning says so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from abnn.config import DEFAULTS, FitConfig
from abnn.errors import DivergedError, InputError, at_least_one, explain, unknown
from abnn.predict.processor import check_bfloat16
from abnn.train.batches import Batches
from abnn.train.capture import CapturedStep
from abnn.train.checkpoint import Run
from abnn.train.optimizers import SCHEDULES, Rates, Schedule, name_of
from abnn.train.randomness import seeded
from abnn.train.trainable import History, Trainable
from abnn.train.watch import Watch, ending, make_loggers

PRECISIONS = ("32-true", "bf16-mixed")
ACCELERATORS = ("auto", "cpu", "cuda", "gpu", "mps")
LOOK_EVERY = 100  # steps after which losses on CUDA are looked at
LONG_RUN = 2000  # steps from which measuring convolutions pays


Result = TypeVar("Result")


@contextlib.contextmanager
def training_mode(steps: int | None = None) -> Iterator[None]:
    """Inside, gradients are recorded, and cuDNN measures which convolution is fastest: shapes of training do not
    change.

    Use it around all runs that take turns. Around one of them, it would end while others are under way.

    steps  how many there will be; measuring takes seconds and much memory, so few steps do without. None: not known
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or steps is None or steps >= LONG_RUN
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.backends.cudnn.benchmark = before


def to_end(run: Generator[None, None, Result], steps: int | None = None) -> Result:
    """Run all steps without turns for other runs, and return what the run returns; ``steps``: see training_mode()."""
    with training_mode(steps):
        while True:
            try:
                next(run)
            except StopIteration as stop:
                return stop.value


def make_fabric(precision: str, accelerator: str, devices: int | str, num_nodes: int) -> Any:
    """Return a Lightning Fabric that is launched."""
    fabric = plan_fabric(precision, accelerator, devices, num_nodes)
    fabric.launch()
    return fabric


def plan_fabric(precision: str, accelerator: str, devices: int | str = 1, num_nodes: int = 1) -> Any:
    """Return a Lightning Fabric that is not launched. What this machine does not have is an error."""
    from lightning_fabric import Fabric  # slow to import, and only needed for training
    from lightning_fabric.utilities.exceptions import MisconfigurationException

    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if accelerator not in ACCELERATORS:
        raise unknown("accelerator", accelerator, ACCELERATORS)
    if devices != "auto":
        at_least_one("devices", devices, ', or "auto"')
    at_least_one("num_nodes", num_nodes)
    try:
        options: dict[str, Any] = {"accelerator": accelerator, "precision": precision}
        fabric = Fabric(devices=devices, num_nodes=num_nodes, **options)
    except (MisconfigurationException, RuntimeError, ValueError) as error:
        actual = f"{accelerator!r} with devices={devices!r}"
        fix = " ".join(str(error).split())
        raise InputError(explain("accelerator", actual, "what this machine has, or auto", fix)) from error
    if precision == "bf16-mixed" and fabric.device.type == "cpu":
        check_bfloat16()
    return fabric


def training(
    trainable: Trainable,
    batches: Batches,
    fabric: Any,
    epochs: int,
    settings: dict[str, Any],
    schedule: str | Schedule = "cosine",
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    config: FitConfig = DEFAULTS,
) -> Generator[None, None, History]:
    """Train for ``epochs`` epochs, pause after every step, and return the history at the end.

    The pauses let several runs take turns, see ``research.lanes``.

    settings  say which run this is, so that no other run goes on from its checkpoint
    config    says how often checkpoints are written, and what is logged
    """
    at_least_one("epochs", epochs)
    every = config.checkpoint_every
    if every is not None:
        at_least_one("checkpoint_every", every, ", or None")
    if not callable(schedule) and schedule not in SCHEDULES:
        raise unknown("schedule", schedule, SCHEDULES)
    factor_of = schedule if callable(schedule) else SCHEDULES[schedule]

    def factor_at(epoch: int, step: int) -> float:
        return factor_of((epoch + (step / batches.length if batches.length else 0.0)) / epochs)

    rates = Rates(trainable.optimizers.values(), fabric.device)
    run = _start(trainable, batches, fabric, {**settings, "epochs": epochs, "seed": seed}, schedule, checkpoint)
    step_of = _stepper(trainable, fabric)
    first = fabric.is_global_zero
    loggers = make_loggers(config.log, config.log_dir) if first else []
    watch = Watch(trainable.title, epochs, batches.length, run.epoch, progress and first)
    watch.sums = dict(run.sums)
    with ending(loggers), watch.bar:
        while run.epoch < epochs:
            epoch, started, factor = run.epoch, time.perf_counter(), 1.0
            if run.step == 0:
                trainable.begin_epoch(epoch, batches.once)
            else:  # a checkpoint may come from the last step of an epoch: then no other step sets the factor
                factor = factor_at(epoch, run.step - 1)
            for step, x, y in batches.epoch(epoch, skip=run.step):
                factor = factor_at(epoch, step)
                rates.set(factor)
                losses = step_of(x, y, ("outliers", seed, epoch, step, fabric.global_rank))
                trainable.after_step()
                watch.step(losses)
                run.step = step + 1
                # On CUDA a look at values makes the host wait for the device.
                if fabric.device.type != "cuda" or step % LOOK_EVERY == 0:
                    watch.flush()
                    _stop_if_diverged(run, losses, look=step % 20 == 0)
                if every and run.step % every == 0 and first:
                    run.sums = watch.flush()
                    run.save()
                yield
            means = watch.end_epoch()
            _stop_if_diverged(run, {name: torch.tensor(mean) for name, mean in means.items()}, whole=True)
            row = {"epoch": epoch + 1, **means, **trainable.end_epoch(epoch, means), "lr_factor": factor}
            run.history.rows.append({**row, "seconds": time.perf_counter() - started})
            for logger in loggers:
                logger.log_metrics(run.history.last, step=epoch)
                logger.save()
            run.epoch, run.step, run.sums = epoch + 1, 0, {}
            run.keep()
            if first:
                run.save()
    return run.history


def _start(
    trainable: Trainable,
    batches: Batches,
    fabric: Any,
    settings: dict[str, Any],
    schedule: str | Schedule,
    checkpoint: str | Path | None,
) -> Run:
    """Return the run at its beginning, or at the step of its checkpoint."""
    if checkpoint is not None:
        batches.warn_if_not_repeatable()
        settings = {**settings, "data": batches.identity, "schedule": name_of(schedule)}
    run = Run(trainable, settings, Path(checkpoint) if checkpoint else None)
    if fabric.world_size > 1:
        run.broadcast(fabric)
    run.resume()
    return run


def _stepper(trainable: Trainable, fabric: Any) -> Any:
    """Return a function of (x, y, key) that makes one step; on CUDA it runs as a graph where that is possible.

    Random numbers of outliers belong to the key. On CUDA they come from its global generator, which a graph can read.
    """
    if fabric.device.type != "cuda":
        return lambda x, y, key: trainable.step(x, y, seeded(*key))
    captured = CapturedStep(trainable) if trainable.capturable and fabric.world_size == 1 else None
    return lambda x, y, key: captured(x, y) if captured is not None else trainable.step(x, y, None)


def _stop_if_diverged(run: Run, losses: dict[str, Tensor], look: bool = False, whole: bool = False) -> None:
    """Set the model back and raise an error where losses are not finite, or the state is bad.

    look   whether to ask the trainable for trouble, too
    whole  whether to look at every value as well, before they are kept as good ones
    """
    finite = not losses or bool(torch.stack([*losses.values()]).isfinite().all())
    trouble = None if finite else "a loss is not finite"
    if trouble is None and (look or whole):
        trouble = run.trainable.trouble()
    if trouble is None and whole and not run.finite():
        trouble = "a trained value is not finite"
    if trouble is None:
        return
    run.restore(run.good)
    values = ", ".join(f"{name} {value.item():.4g}" for name, value in losses.items())
    advice = (
        "Lower lr, raise kl_weight, or check that inputs are scaled; maximised outlier losses have no bound and can "
        "always do this. A network that returns log(p) needs log_softmax: the log of zero has no gradient."
    )
    if [name for name, value in losses.items() if not value.isfinite()] == ["outliers"]:
        advice = "On ordinary data they are: check that outliers are finite, and lie where the network is defined."
    raise DivergedError(
        f"training diverged at epoch {run.epoch + 1}, step {run.step}: {trouble} ({values}). The model was set back to "
        f"its state after {run.epoch} complete epochs. {advice}"
    )
