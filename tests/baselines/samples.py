"""A small task that every method can be trained on in a second, and parts to test methods with."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from abnn.baselines import Method, Run, TrainConfig, Trained, train_method
from abnn.baselines._training import choose_outliers
from abnn.data.digits import Labelled, load_digits
from abnn.outliers import measure_range
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric

TINY: dict[str, Any] = {
    "name": "paper-resnet",
    "classes": 10,
    "in_channels": 1,
    "width": 8,
    "blocks": 2,
    "stem": "small",
}


@cache
def digits() -> Labelled:
    data = load_digits(0).train
    return Labelled(data.x[:96], data.y[:96])


def loader(batch: int = 32, shuffle: bool = True) -> DataLoader:
    return DataLoader(TensorDataset(*digits()), batch_size=batch, shuffle=shuffle)


def quick(method: str | Method, epochs: int = 2, backbone: Any = None, **options: Any) -> Trained:
    """A trained method; ``options`` are those of train_method, or of its TrainConfig."""
    direct = {name: options.pop(name) for name in ("classes", "outliers", "seed") if name in options}
    config = TrainConfig(**{"accelerator": "cpu", **options})
    start = TINY if backbone is None else backbone
    return train_method(method, start, loader(), epochs, progress=False, config=config, **direct)


def make_run(method: Method, network: nn.Module, epochs: int = 1) -> Run:
    """What train_method hands to a method, to look at its losses from outside."""
    fabric = make_fabric("32-true", "cpu", 1, 1)
    x = digits().x
    model = Trained(method, network, x[:1], 10)
    batches = Batches(loader(), model, fabric, 0)
    outliers = choose_outliers(method, "preset", x[:1])
    if outliers is not None and outliers.needs_range:
        outliers.prepare(*measure_range([x]))
    return Run(network, fabric, batches, outliers, epochs, len(x))


def state(trained: Trained) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trained.network.state_dict().items()}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
