"""What a training run shows: a progress bar, means per epoch, and log files on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from torch import Tensor

from abnn.errors import MissingExtraError, unknown


class Watch:
    """Collects the losses of one epoch and shows their means meanwhile.

    length         batches of an epoch; None: not known
    epochs_before  how many epochs the run had when it was resumed
    visible        whether there is a bar
    """

    def __init__(self, title: str, epochs: int, length: int | None, epochs_before: int, visible: bool) -> None:
        self.sums: dict[str, float] = {}
        self.names: list[str] = []
        self.pending: Tensor | None = None
        self.count = 0
        self.bar = progress_bar(disable=not visible)
        total = epochs * length if length else None
        self.task = self.bar.add_task(title, total=total, completed=epochs_before * (length or 0), status="")

    def step(self, losses: dict[str, Tensor]) -> None:
        """Add the losses of one step, on their device, in float64 where the device has it."""
        values = torch.stack([*losses.values()])
        values = values.float() if values.device.type == "mps" else values.double()
        self.names = list(losses)
        self.pending = values if self.pending is None else self.pending + values
        self.count += 1

    def flush(self) -> dict[str, float]:
        """Fetch what was added since the last call, show the means so far, and return the sums."""
        if self.pending is not None:
            for name, value in zip([*self.names, "steps"], [*self.pending.tolist(), float(self.count)]):
                self.sums[name] = self.sums.get(name, 0.0) + value
            status = "  ".join(f"{name} {self.sums[name] / self.sums['steps']:.3g}" for name in self.names)
            self.bar.update(self.task, advance=self.count, status=status)
            self.pending, self.count = None, 0
        return self.sums

    def end_epoch(self) -> dict[str, float]:
        """Return the means of this epoch, and start the next one."""
        self.flush()
        count = self.sums.pop("steps")
        means = {name: total / count for name, total in self.sums.items()}
        self.sums = {}
        return means


def progress_bar(disable: bool = False, transient: bool = False) -> Progress:
    """Return a progress bar with the look of all bars of this package."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
        disable=disable,
        transient=transient,
        expand=True,  # the status gets what is left of the line, and is cut where that is too little
    )


class MLflowLogger:
    """Logs to MLflow: into the caller's active run, or into a new one where there is none.

    ``MLFLOW_TRACKING_URI`` says where, as in all programs that use MLflow.
    """

    def __init__(self) -> None:
        import mlflow

        self.client, active = mlflow.MlflowClient(), mlflow.active_run()
        self.own = active is None
        if active is None:
            experiment = self.client.get_experiment_by_name("abnn")
            number = self.client.create_experiment("abnn") if experiment is None else experiment.experiment_id
            active = self.client.create_run(number, run_name="fit")
        self.run = active.info.run_id

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self.client.log_metric(self.run, name, float(value), step=step)

    def save(self) -> None:
        """Do nothing: MLflow writes each metric at once."""

    def finalize(self, status: str) -> None:
        if self.own:
            self.client.set_terminated(self.run, "FINISHED" if status == "success" else "FAILED")


def make_loggers(log: Sequence[str] | str, directory: str | Path) -> list[Any]:
    """Return loggers by name. Another name is an error, and so is a logger whose package is not installed."""
    from lightning_fabric.loggers import CSVLogger, TensorBoardLogger

    files: dict[str, Any] = {"root_dir": str(directory), "name": "fit"}
    kinds: dict[str, Callable[[], Any]] = {
        "csv": lambda: CSVLogger(**files),
        "tensorboard": lambda: TensorBoardLogger(**files),
        "mlflow": MLflowLogger,
    }
    names = [log] if isinstance(log, str) else log
    for name in names:
        if name not in kinds:
            raise unknown("log", name, kinds)
    try:
        return [kinds[name]() for name in names]
    except ModuleNotFoundError as error:
        package = "mlflow" if error.name == "mlflow" else "tensorboard"
        raise MissingExtraError(package, "mlflow" if package == "mlflow" else "logs") from None


@contextmanager
def ending(loggers: Sequence[Any]) -> Iterator[None]:
    """Inside, a run is logged; at the end, the loggers learn whether it succeeded or failed."""
    status = "failed"
    try:
        yield
        status = "success"
    finally:
        for logger in loggers:
            logger.finalize(status)
