"""A part of the data that attachments do not see: what they say about it is what they will say about new inputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence, Sized
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from abnn.errors import AbnnWarning, explain

FEWEST, MOST = 20, 2000
"""Inputs that are worth holding out, and that are enough."""
FEW = 100
"""Inputs below which a fit warns: at the usual share none are held out."""


def hold_out(loader: Any, share: float, seed: int) -> tuple[Any, Iterable[Any] | None]:
    """Return a loader of most of the data and one of the rest, which belong to the seed.

    Of an ordinary DataLoader single inputs are held out, of a list of batches the last inputs of batches. Nothing is held out,
    and None comes back, where inputs cannot be told from one reading to the next, or there are too few.
    """
    if isinstance(loader, DataLoader) and (items := _items(loader)) is not None:
        count = len(items)
        held = min(int(share * count), MOST)
        if (count - held) % (loader.batch_size or 1) == 1:
            held -= 1  # batch normalisation cannot learn from a last batch of one
        if held < FEWEST:
            return loader, None
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        rest, out = (items[places.sort().values] for places in (order[held:], order[:held]))
        return _over(loader, rest), _over(loader, out, in_order=True)
    if isinstance(loader, list | tuple):
        return _split_batches(loader, share)
    return loader, None


def warn_of(loader: Any, share: float) -> None:
    """Warn of a loader with few inputs, where their number can be said; and of a DataLoader that :func:`hold_out` cannot split."""
    count: int | None = None
    if isinstance(loader, list | tuple):
        sizes = [_size(batch) for batch in loader]
        count = None if None in sizes else sum(size or 0 for size in sizes)
    elif isinstance(loader, DataLoader) and loader.batch_sampler is not None and isinstance(loader.sampler, Sized):
        count = len(loader.sampler)
    if count and count < FEW:
        accepted = f"at least {FEW}, of which some are held out to learn the score from"
        fix = "A score from fewer may accept inputs that are nothing like them. Fit on more of the training data."
        actual = f"few inputs, {count}"
    elif share and isinstance(loader, DataLoader) and _items(loader) is None:
        kinds = "in order, shuffled or weighted, or a list of batches"
        accepted = f"one of torch's DataLoaders over a data set with a length, {kinds}"
        fix = "The score is learnt from what attachments were fitted to, and cannot say how changed an input looks."
        actual = f"a {type(loader).__name__} of whose inputs none can be held out"
    else:
        return
    warnings.warn(explain("loader", actual, accepted, fix), AbnnWarning, stacklevel=3)  # of fit()


def _split_batches(batches: Sequence[Any], share: float) -> tuple[Any, Iterable[Any] | None]:
    """Return the beginnings of batches and their ends; the batches themselves where one is not a pair of equal length."""
    sizes = [_size(batch) for batch in batches]
    known = [size for size in sizes if size is not None]
    held = min(int(share * sum(known)), MOST)
    if len(known) < len(sizes) or held < FEWEST:
        return batches, None
    # Of n inputs so far, the whole part of share * n is held out: that of single inputs in small batches adds up.
    ends = [0, *(int(held * count / sum(known)) for count in accumulate(known))]
    cuts = [size - (end - start) for size, start, end in zip(known, ends, ends[1:])]
    rest = [_cut(batch, slice(cut)) for batch, cut in zip(batches, cuts) if cut]
    return rest, [_cut(batch, slice(cut, None)) for batch, cut, size in zip(batches, cuts, known) if cut < size]


def _cut(batch: Any, rows: slice) -> Any:
    """Some rows of a batch; (inputs, labels), or a dict, stays one."""
    if isinstance(batch, Mapping):
        return {name: _cut(part, rows) for name, part in batch.items()}
    if not isinstance(batch, tuple | list):
        return batch[rows]
    numbers = isinstance(batch[0], int | float) or getattr(batch[0], "shape", None) == ()  # labels, of any library
    return batch[rows] if numbers else [_cut(part, rows) for part in batch]


def _size(batch: Any) -> int | None:
    """How many inputs a batch has; None where that cannot be said. What is wrong with it is said when it is read."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    elif not isinstance(batch, tuple | list) or len(batch) < 2:
        return None
    try:
        sizes = {_size(part) if isinstance(part, Mapping | tuple) else len(part) for part in batch}
    except TypeError:
        return None
    return sizes.pop() if len(sizes) == 1 else None


def _items(loader: DataLoader) -> Tensor | None:
    """Return the places of all items of a data set that a loader can read; None where that cannot be said.

    One of torch's samplers says so: each item once, in order or shuffled; each of a subset; or by weights, again and again.
    """
    data, sampler = loader.dataset, loader.sampler
    if type(loader) is not DataLoader or loader.batch_size is None or isinstance(data, IterableDataset):
        return None
    if not (isinstance(data, Sized) and hasattr(data, "__getitem__")):
        return None
    count = len(data)
    if type(sampler) is SubsetRandomSampler:
        places = torch.tensor(list(sampler.indices), dtype=torch.int64)
        return places if len(places.unique()) == len(places) else None
    if type(sampler) is WeightedRandomSampler:
        return sampler.weights.nonzero()[:, 0] if sampler.replacement and len(sampler.weights) == count else None
    if type(sampler) is RandomSampler:
        return None if sampler.replacement or sampler.num_samples != count else torch.arange(count)
    return torch.arange(count) if type(sampler) is SequentialSampler else None


def _over(loader: DataLoader, places: Tensor, in_order: bool = False) -> DataLoader:
    """The same loader over some items of its data set; the last batch is dropped only where others are left."""
    data: Any = loader.dataset
    old, rows, sampler = loader.sampler, places.tolist(), None
    if isinstance(old, WeightedRandomSampler) and not in_order:
        count = max(1, round(old.num_samples * len(places) / int(old.weights.count_nonzero())))
        sampler = WeightedRandomSampler(old.weights[places].tolist(), count, generator=old.generator)
    if type(data) is Subset:  # of which another one would hide the tensors
        data, rows = data.dataset, [data.indices[row] for row in rows]
    return DataLoader(
        Subset(data, rows),
        batch_size=loader.batch_size,
        shuffle=not in_order and isinstance(old, RandomSampler | SubsetRandomSampler),
        sampler=sampler,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        drop_last=loader.drop_last and not in_order and len(places) >= (loader.batch_size or 1),
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=None if in_order else loader.generator or getattr(old, "generator", None),
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
