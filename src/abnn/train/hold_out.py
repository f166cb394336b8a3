"""Hold data out of a fit. What attachments say about data that they never saw, they will say about new inputs."""

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
"""The smallest number of inputs that is worth holding out, and the largest that is held out."""
FEW = 100
"""The number of inputs below which a fit warns: at the usual share none are held out."""


def hold_out(loader: Any, share: float, seed: int) -> tuple[Any, Iterable[Any] | None]:
    """Return a loader of most of the data and one of the held-out rest; the split belongs to the seed.

    From an ordinary DataLoader single inputs are held out, from a list of batches the last inputs of each batch. The
    second loader is None, and nothing is held out, where there are too few inputs, or where it cannot be said which
    input is which from one reading to the next.
    """
    if isinstance(loader, DataLoader) and (items := _items(loader)) is not None:
        total = len(items)
        count = min(int(share * total), MOST)  # to hold out
        if (total - count) % (loader.batch_size or 1) == 1:
            count -= 1  # batch normalisation cannot learn from a last batch of one
        if count < FEWEST:
            return loader, None
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        rest, held_out = (items[places.sort().values] for places in (order[count:], order[:count]))
        return _loader_over(loader, rest), _loader_over(loader, held_out, in_order=True)
    if isinstance(loader, list | tuple):
        return _split_batches(loader, share)
    return loader, None


def warn_about(loader: Any, share: float) -> None:
    """Warn about a loader that is known to have few inputs, and about one that :func:`hold_out` cannot split."""
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
    """Return the beginnings of the batches and their ends.

    Nothing is held out, and the second value is None, where the size of a batch is not known, or there are too few
    inputs.
    """
    sizes = [size for batch in batches if (size := _size(batch)) is not None]
    total = sum(sizes)
    count = min(int(share * total), MOST)  # to hold out
    if len(sizes) < len(batches) or count < FEWEST:
        return batches, None
    # Of n inputs so far, the whole part of share * n is held out: that of single inputs in small batches adds up.
    ends = [0, *(int(count * so_far / total) for so_far in accumulate(sizes))]
    cuts = [size - (end - start) for size, start, end in zip(sizes, ends, ends[1:])]
    rest = [_slice(batch, slice(cut)) for batch, cut in zip(batches, cuts) if cut]
    return rest, [_slice(batch, slice(cut, None)) for batch, cut, size in zip(batches, cuts, sizes) if cut < size]


def _slice(batch: Any, rows: slice) -> Any:
    """Return some rows of a batch, in the same form: a pair (inputs, labels) stays a pair, a dict stays a dict."""
    if isinstance(batch, Mapping):
        return {name: _slice(part, rows) for name, part in batch.items()}
    if not isinstance(batch, tuple | list):
        return batch[rows]
    # A list of labels, of any library.
    is_numbers = isinstance(batch[0], int | float) or getattr(batch[0], "shape", None) == ()
    return batch[rows] if is_numbers else [_slice(part, rows) for part in batch]


def _size(batch: Any) -> int | None:
    """Return how many inputs a batch has; None where that is not known. A wrong batch is an error when it is read."""
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
    """Return the places of all items of the data set that a loader reads; None where that is not known.

    It is known for these samplers of torch: each item once, in order or shuffled; each item of a subset; or by weights,
    with replacement.
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


def _loader_over(loader: DataLoader, places: Tensor, in_order: bool = False) -> DataLoader:
    """Return the same loader over some items of its data set. A last smaller batch is dropped only beside others.

    in_order  read the items in order, whatever the loader does
    """
    data: Any = loader.dataset
    old, rows, sampler = loader.sampler, places.tolist(), None
    if isinstance(old, WeightedRandomSampler) and not in_order:
        count = max(1, round(old.num_samples * len(places) / int(old.weights.count_nonzero())))
        sampler = WeightedRandomSampler(old.weights[places].tolist(), count, generator=old.generator)
    if type(data) is Subset:  # a subset of a subset would hide the tensors
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
