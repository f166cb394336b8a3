"""Small data sets live on the device: a batch is then one indexing instead of a loop over samples and a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, TensorDataset, default_collate

LARGEST = 4 * 2**30


class Resident:
    """Gives the batches of a DataLoader over tensors, in the same order, from tensors on a device."""

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        assert isinstance(loader.dataset, TensorDataset)
        self.loader = loader
        self.tensors = [tensor.to(device) for tensor in loader.dataset.tensors]

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[list[Tensor]]:
        # A DataLoader draws a seed for its workers before its sampler draws one for the order.
        torch.empty((), dtype=torch.int64).random_(generator=self.loader.generator)
        for rows in self.loader.batch_sampler:  # type: ignore[union-attr]
            index = torch.tensor(rows, device=self.tensors[0].device)
            yield [tensor.index_select(0, index) for tensor in self.tensors]


def resident(loader: Any, device: torch.device) -> Resident | None:
    """A loader's batches from the device, or None where that is not possible or would take too much memory."""
    if device.type != "cuda" or type(loader) is not DataLoader or type(loader.dataset) is not TensorDataset:
        return None
    size = sum(tensor.numel() * tensor.element_size() for tensor in loader.dataset.tensors)
    plain = loader.collate_fn is default_collate and isinstance(loader.batch_sampler, BatchSampler)
    return Resident(loader, device) if plain and size <= LARGEST else None
