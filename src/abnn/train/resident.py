"""Data sets of tensors: whole batches are indexed, instead of single items, and small data sets lie on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, Subset, TensorDataset, default_collate

LARGEST = 2**30  # bytes that are copied to a device
_COPIES: WeakKeyDictionary[Dataset, dict[torch.device, tuple[list[Tensor], list[Tensor], Any]]] = WeakKeyDictionary()
"""Copies of data sets by device: the copies, their sources, and these sources' version (tensors, writes, rows)."""


class Resident:
    """The batches of a DataLoader over tensors, or over some of their rows, on a CUDA device and in the same order.

    A small data set is copied to the device once, for all runs that use it. Of a larger one, batches are copied while
    the device computes. Data that is on the device already is not copied.
    """

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        data: Any = loader.dataset
        source = tensors_in(data)
        assert source is not None
        self.loader, self.device = loader, device
        self.tensors, self.places = list(source[0]), source[1]
        size = sum(tensor[:1].numel() * tensor.element_size() for tensor in self.tensors) * len(data)
        here = self.tensors[0].device
        is_there = here.type == device.type and device.index in (None, here.index)
        if not is_there and size <= LARGEST:
            copies = _COPIES.setdefault(data, {})
            writes = [(id(tensor), None if tensor.is_inference() else tensor._version) for tensor in self.tensors]
            version = writes, None if self.places is None else self.places.tolist()
            if device not in copies or copies[device][2] != version:
                rows = self.tensors if self.places is None else [tensor[self.places] for tensor in self.tensors]
                copies[device] = [tensor.to(device) for tensor in rows], self.tensors, version
            self.tensors, self.places = copies[device][0], None
        if device.type == "cuda":  # runs on other streams may read them from now on
            torch.cuda.synchronize(device)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Tensor]]:
        # A DataLoader draws a seed for its workers before its sampler draws one for the order.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        return self._batches()

    def _batches(self) -> Iterator[list[Tensor]]:
        batches = list(self.loader.batch_sampler)  # type: ignore[arg-type]
        order = torch.tensor([row for rows in batches for row in rows], dtype=torch.int64)
        order = order if self.places is None else self.places[order]
        for index in order.to(self.tensors[0].device).split([len(rows) for rows in batches]):
            yield [self._pick(tensor, index) for tensor in self.tensors]

    def _pick(self, tensor: Tensor, rows: Tensor) -> Tensor:
        if tensor.device.type == self.device.type:
            return tensor.index_select(0, rows)
        pinned = torch.empty(len(rows), *tensor.shape[1:], dtype=tensor.dtype, pin_memory=True)
        return torch.index_select(tensor, 0, rows, out=pinned).to(self.device, non_blocking=True)


def resident(loader: Any, device: torch.device) -> Resident | None:
    """Return a loader's batches as :class:`Resident`; None where its data are no tensors, or the device is not CUDA."""
    if device.type != "cuda" or type(loader) is not DataLoader or (source := tensors_in(loader.dataset)) is None:
        return None
    is_plain = loader.collate_fn is default_collate and isinstance(loader.batch_sampler, BatchSampler)
    one_device = len({tensor.device for tensor in source[0]}) == 1
    return Resident(loader, device) if is_plain and one_device else None


def tensors_in(data: Any) -> tuple[Sequence[Tensor], Tensor | None] | None:
    """Return the tensors of a data set, and which rows belong to it (None: all); None for another kind of data set."""
    if type(data) is TensorDataset:
        return data.tensors, None
    if type(data) is Subset and type(data.dataset) is TensorDataset:
        return data.dataset.tensors, torch.as_tensor(data.indices, dtype=torch.int64) % len(data.dataset)
    return None
