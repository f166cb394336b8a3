"""Batches from the device are those of the loader."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from abnn.resident import Resident, resident

DATA = TensorDataset(torch.rand(23, 2), torch.arange(23))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("shuffle", "drop"), [(False, False), (True, False), (True, True)])
def test_same_batches_in_the_same_order(shuffle: bool, drop: bool, own: bool) -> None:
    generator = torch.Generator() if own else None
    loader = DataLoader(DATA, batch_size=5, shuffle=shuffle, drop_last=drop, generator=generator)
    both = []
    for source in (loader, Resident(loader, torch.device("cpu"))):
        torch.manual_seed(3)
        if generator is not None:
            generator.manual_seed(7)
        both.append([[part.clone() for part in batch] for batch in source])
    assert len(both[0]) == len(both[1]) == len(Resident(loader, torch.device("cpu")))
    assert all(torch.equal(a, b) for one, two in zip(*both) for a, b in zip(one, two))


def test_only_plain_tensor_loaders_and_only_on_cuda() -> None:
    plain = DataLoader(DATA, batch_size=5)
    assert resident(plain, torch.device("cpu")) is None
    cuda = torch.device("cuda")
    assert resident([(1, 2)], cuda) is None
    assert resident(DataLoader(DATA, batch_size=5, collate_fn=lambda rows: rows), cuda) is None
    assert resident(DataLoader(DATA, batch_size=None), cuda) is None
