"""The networks and data of each benchmark, as jobs of one form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from abnn.data.digits import load_digits
from abnn.demo.digits import BACKBONE, train_backbone
from abnn.networks.by_name import build_backbone
from research.pretrained.data import Images
from research.pretrained.networks import by_name
from research.tasks import load_task
from research.zoo.data import JOBS
from research.zoo.networks import FITS
from research.zoo.run import SEEDS, train

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TASK_SEEDS, TASK_STEPS, TASK_BATCH = 3, 1500, 128  # of training the paper's network
HELD_OUT = 2000  # training images of MNIST and SVHN that choose the width of the posterior


@dataclass(frozen=True)
class Job:
    """One network with its data.

    name      of its record, without the seed
    fit       data for attachments and score
    held_out  data that chooses the width of the posterior
    sets      (name, tier, data); labels are -1 where an input has no class
    """

    name: str
    seed: int
    network: nn.Module
    fit: Dataset[Any]
    held_out: Dataset[Any]
    sets: Sequence[tuple[str, str, Dataset[Any]]]
    batch: int = 32

    def loader(self, data: Dataset[Any], shuffle: bool = False) -> DataLoader[Any]:
        return DataLoader(data, self.batch if shuffle else 200, shuffle=shuffle)


def unlabelled(x: Tensor) -> TensorDataset:
    return TensorDataset(x, torch.full((len(x),), -1))


Plan = tuple[str, int, Callable[[], Job]]
"""Name and seed of a job, and what makes it: a network is trained only where it is measured."""


def zoo(options: Any) -> Iterator[Plan]:
    """Yield every fit of :mod:`research.zoo`."""

    def make(title: str, data: str, build: Callable[[], nn.Module], seed: int) -> Job:
        job = JOBS[data](seed)
        torch.manual_seed(seed)
        network = build().to(DEVICE)
        train(network, job.train[0].to(DEVICE), job.train[1].to(DEVICE), seed)
        sets = [("test", "id", TensorDataset(*job.test))]
        sets += [(kind, "full", unlabelled(x)) for kind, x in job.outliers.items()]
        return Job(title, seed, network, TensorDataset(*job.train), TensorDataset(*job.calibrate), sets)

    for seed in SEEDS:
        for name, data, build in FITS:
            title = f"{name}-{data}".replace(" ", "-")
            yield title, seed, partial(make, title, data, build, seed)


def digits(options: Any) -> Iterator[Plan]:
    """Yield the embedded example of ``abnn demo`` for five seeds."""

    def make(seed: int) -> Job:
        data = load_digits(seed)
        network = build_backbone("paper-resnet", 10, 1, **BACKBONE)
        train_backbone(network, data, seed, progress=False)
        sets = [("handwritten digits", "id", TensorDataset(*data.test))]
        sets += [("printed digits", "semi", TensorDataset(*data.semi))]
        sets += [("photographs", "full", unlabelled(data.full.x))]
        parts = TensorDataset(*data.train), TensorDataset(*data.val)
        return Job("digits", seed, network.to(DEVICE), *parts, sets, 64)

    for seed in range(5):
        yield "digits", seed, partial(make, seed)


def task(name: str, options: Any) -> Iterator[Plan]:
    """Yield the paper's network on MNIST or SVHN, trained for 1,500 steps; the tests are the paper's."""

    def make(seed: int) -> Job:
        whole = load_task(name, root=options.data)
        x, y = whole.train
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[: options.train]
        held, fit = order[:HELD_OUT], order[HELD_OUT:]
        network = build_backbone(**whole.backbone).to(DEVICE)
        epochs = -(-TASK_STEPS * TASK_BATCH // len(fit))
        train(network, x[fit].to(DEVICE), y[fit].to(DEVICE), seed, epochs, TASK_BATCH)
        sets = []
        for title, tier, part in whole.sets:
            rows = torch.randperm(len(part.x), generator=torch.Generator().manual_seed(0))[: options.limit]
            of_tier = unlabelled(part.x[rows]) if tier == "full" else TensorDataset(part.x[rows], part.y[rows])
            sets.append((title, tier, of_tier))
        parts = TensorDataset(x[fit], y[fit]), TensorDataset(x[held], y[held])
        return Job(name, seed, network, *parts, sets, TASK_BATCH)

    for seed in range(TASK_SEEDS):
        yield name, seed, partial(make, seed)


def pretrained(options: Any) -> Iterator[Plan]:
    """Yield a network that knows ImageNet on the splits of :mod:`research.pretrained`, without drawings."""
    network = by_name(options.network, options.weights)
    images = Images(options.data, network.size, network.classes, options.limit, options.crop)

    def make(number: int) -> Job:
        split = images.split(number)
        sets: list[Any] = [(each.name, each.tier, each) for each in split.tests if not each.groups]
        built = network.build(split.classes).to(DEVICE)
        return Job(network.name, number, built, split.fit, split.calibrate, sets, 64)  # type: ignore[arg-type]

    for number in range(options.splits):
        yield network.name, number, partial(make, number)


BENCHMARKS: dict[str, Callable[[Any], Iterator[Plan]]] = {
    "zoo": zoo,
    "digits": digits,
    "mnist": partial(task, "mnist"),
    "svhn": partial(task, "svhn"),
    "pretrained": pretrained,
}
"""Each gives the jobs of a benchmark, in the same order every time."""
