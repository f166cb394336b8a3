"""Train a method with several seeds from one process; on CUDA all are trained at once."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from abnn.baselines import Method, TrainConfig, Trained
from abnn.baselines._trained import Backbone
from abnn.baselines._training import training_steps
from abnn.errors import InputError, explain
from abnn.outliers import PRESET, Outliers
from abnn.train.batches import generators_of
from abnn.train.loop import make_fabric
from abnn.train.randomness import preserved_random_state
from research.lanes import together


def train_seeds(
    method: str | Method,
    backbone: Backbone | Sequence[nn.Module],
    loader: Iterable[Any],
    epochs: int = 40,
    *,
    seeds: Sequence[int] = range(5),
    classes: int | None = None,
    outliers: str | Outliers | Any | None = PRESET,
    progress: bool = True,
    config: TrainConfig | None = None,
) -> list[Trained]:
    """Return what :func:`abnn.baselines.train_method` gives for each seed.

    backbone  as there, or a list with one network for each seed
    config    as there; every seed writes a checkpoint of its own, with the seed in its name

    Everything else is as there.
    """
    if not seeds:
        raise InputError(explain("seeds", repr(seeds), "one seed or more"))
    backbones = list(backbone) if isinstance(backbone, list | tuple) else [backbone] * len(seeds)
    if len(backbones) != len(seeds):
        raise InputError(explain("backbone", f"{len(backbones)} networks", f"one for each of {len(seeds)} seeds"))
    config = config or TrainConfig()

    def run(seed: int, start: Any) -> Generator[None, None, Trained]:
        path = None if config.checkpoint is None else Path(config.checkpoint)
        own = replace(config, checkpoint=None if path is None else path.with_stem(f"{path.stem}-seed{seed}"))
        shown = progress and seed == seeds[0]
        return training_steps(method, start, loader, epochs, classes, outliers, seed, shown, own)

    device = make_fabric(config.precision, config.accelerator, config.devices, config.num_nodes).device
    with preserved_random_state(*generators_of(loader)):
        return together([run(seed, start) for seed, start in zip(seeds, backbones)], device)
