"""A part of the data that attachments do not see: what they say about it is what they will say about new inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

FEWEST, MOST = 20, 2000
"""Inputs that are worth holding out, and that are enough."""


def hold_out(loader: Any, share: float, seed: int) -> tuple[Any, Iterable[Any] | None]:
    """Return a loader of most of the data and one of the rest, which belong to the seed.

    Of an ordinary DataLoader single inputs are held out, of a list of batches the last inputs of each. Nothing is held out,
    and None comes back, where inputs cannot be told from one reading to the next, or there are too few.
    """
    if type(loader) is DataLoader and _is_plain(loader):
        count = len(loader.dataset)  # type: ignore[arg-type]
        held = min(int(share * count), MOST)
        if held < FEWEST:
            return loader, None
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        rest, out = (places.sort().values for places in (order[held:], order[:held]))
        return _over(loader, rest), _over(loader, out, in_order=True)
    if isinstance(loader, list | tuple) and all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in loader):
        held_rows = [int(share * len(batch[0])) for batch in loader]
        if sum(held_rows) >= FEWEST:
            pairs = list(zip(loader, held_rows))
            rest_of = [[part[: len(part) - rows] for part in batch] for batch, rows in pairs]
            return rest_of, [[part[len(part) - rows :] for part in batch] for batch, rows in pairs if rows][:MOST]
    return loader, None


def _is_plain(loader: DataLoader) -> bool:
    """Whether a loader reads each item of a data set once, in order or shuffled."""
    data, sampler = loader.dataset, loader.sampler
    sized = isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__")
    shuffled = isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(data)  # type: ignore[arg-type]
    return sized and loader.batch_size is not None and (type(sampler) is SequentialSampler or shuffled)


def _over(loader: DataLoader, places: Tensor, in_order: bool = False) -> DataLoader:
    """The same loader over some items of its data set; the last batch is dropped only where others are left."""
    data: Any = loader.dataset
    some = TensorDataset(*(part[places] for part in data.tensors)) if type(data) is TensorDataset else None
    return DataLoader(
        some if some is not None else Subset(data, places.tolist()),
        batch_size=loader.batch_size,
        shuffle=not in_order and isinstance(loader.sampler, RandomSampler),
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last and not in_order and len(places) >= (loader.batch_size or 1),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=None if in_order else loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
