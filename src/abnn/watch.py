"""What a training run shows: a progress bar, means per epoch, and log files on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from abnn.attach import Attached
from abnn.errors import MissingExtraError, unknown


class Watch:
    """Collects the losses of one epoch and shows them while they come."""

    def __init__(
        self,
        model: Attached,
        epochs: int,
        length: int | None,
        rows: Sequence[dict[str, float]],
        shown: bool,
    ) -> None:
        self.model = model
        self.rows = rows
        self.sums: dict[str, float] = {}
        self.bar = progress_bar(disable=not shown)
        total = epochs * length if length else None
        self.task = self.bar.add_task(
            "fitting attachments", total=total, completed=len(rows) * (length or 0), status=""
        )

    def step(self, losses: dict[str, Tensor], kl_factor: float) -> None:
        values = {name: value.item() for name, value in losses.items()}
        for name, value in {**values, "kl_factor": kl_factor, "steps": 1.0}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        count = self.sums["steps"]
        shown = "  ".join(f"{name} {self.sums[name] / count:.4g}" for name in losses)
        self.bar.update(self.task, advance=1, status=shown)

    def largest_sigma(self) -> float:
        with torch.no_grad():
            return max(layer.weight_sigma.max().item() for layer in self.model.layers)

    def end_epoch(self, epoch: int, lr: float, seconds: float) -> dict[str, float]:
        """The row of one epoch; starts the next.

        ``id_divergence`` is the loss of step 2, which equals KL[q || p(w | ID data)] per input up to a constant. Its
        growth above its lowest value so far shows how much uncertainty the outliers have put into the attachments, and
        warns when that is paid for with ID performance (the paper's discussion asks for this number).
        """
        count = self.sums.pop("steps")
        means = {name: total / count for name, total in self.sums.items()}
        divergence = means["id"] + means.pop("kl_factor") * means["kl"]
        lowest = min([row["id_divergence"] for row in self.rows] + [divergence])
        with torch.no_grad():
            sigma = torch.cat([layer.weight_sigma.flatten() for layer in self.model.layers])
        self.sums = {}
        return {
            "epoch": epoch + 1,
            **means,
            "id_divergence": divergence,
            "id_divergence_growth": divergence - lowest,
            "sigma_mean": sigma.mean().item(),
            "sigma_max": sigma.max().item(),
            "lr": lr,
            "seconds": seconds,
        }


def progress_bar(disable: bool = False, transient: bool = False) -> Progress:
    """The look of every progress bar of this package."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[status]}"),
        disable=disable,
        transient=transient,
    )


def make_loggers(log: Sequence[str] | str, directory: str | Path) -> list[Any]:
    """Fabric's loggers by name."""
    from lightning_fabric.loggers import CSVLogger, TensorBoardLogger

    loggers: list[Any] = []
    for name in [log] if isinstance(log, str) else log:
        if name == "csv":
            loggers.append(CSVLogger(root_dir=str(directory), name="fit"))
        elif name == "tensorboard":
            try:
                loggers.append(TensorBoardLogger(root_dir=str(directory), name="fit"))
            except ModuleNotFoundError:
                raise MissingExtraError("tensorboard", "logs") from None
        else:
            raise unknown("log", name, ("csv", "tensorboard"))
    return loggers
