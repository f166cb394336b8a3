"""Batches from the device are those of the loader."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from abnn.tensors import rows_digest
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric
from abnn.train.resident import Resident, resident

DATA = TensorDataset(torch.rand(23, 2), torch.arange(23))
SOME = Subset(DATA, [*range(20, 3, -1), -1])
KINDS = pytest.mark.parametrize("data", [DATA, SOME], ids=["tensors", "rows of tensors"])


@KINDS
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("shuffle", "drop"), [(False, False), (True, False), (True, True)])
def test_same_batches_in_the_same_order(shuffle: bool, drop: bool, own: bool, data: Dataset) -> None:
    generator = torch.Generator() if own else None
    loader = DataLoader(data, batch_size=5, shuffle=shuffle, drop_last=drop, generator=generator)
    both = []
    for source in (loader, Resident(loader, torch.device("cpu"))):
        torch.manual_seed(3)
        if generator is not None:
            generator.manual_seed(7)
        both.append([[part.clone() for part in batch] for batch in source])
    assert len(both[0]) == len(both[1]) == len(Resident(loader, torch.device("cpu")))
    assert all(torch.equal(a, b) for one, two in zip(*both) for a, b in zip(one, two))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@KINDS
@pytest.mark.parametrize("largest", [0, 2**30])
def test_large_data_stay_on_the_host(monkeypatch: pytest.MonkeyPatch, largest: int, data: Dataset) -> None:
    monkeypatch.setattr("abnn.train.resident.LARGEST", largest)
    loader, cuda = DataLoader(data, batch_size=5, shuffle=True), torch.device("cuda", 0)
    found = resident(loader, cuda)
    assert found is not None and found.tensors[0].is_cuda is (largest > 0)
    both = []
    for source in (loader, found):
        torch.manual_seed(3)
        both.append(list(source))
    assert all(b.is_cuda and torch.equal(a, b.cpu()) for one, two in zip(*both) for a, b in zip(one, two))


def test_what_lies_on_the_device_is_not_copied() -> None:
    for data in (DATA, SOME):
        found = Resident(DataLoader(data, batch_size=5), torch.device("cpu"))
        assert all(one is other for one, other in zip(found.tensors, DATA.tensors))


def test_rows_of_tensors_have_the_digest_of_a_copy() -> None:
    tensors = torch.rand(300, 2), torch.arange(300)
    places = torch.randperm(300)[:200]
    assert rows_digest(tensors, places) == rows_digest([each[places] for each in tensors]) != rows_digest(tensors)
    assert rows_digest(tensors, places[:0]) == rows_digest([each[:0] for each in tensors])


def test_samplers_with_epochs_are_told_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = DistributedSampler(DATA, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(DATA, batch_size=5, sampler=sampler)
    model = SimpleNamespace(input_shape=(2,), input_dtype=torch.float32, classes=23)
    fabric, orders = make_fabric("32-true", "cpu", 1, 1), []
    for held in (None, Resident(loader, torch.device("cpu"))):
        monkeypatch.setattr("abnn.train.batches.resident", lambda *_, held=held: held)
        batches = Batches(loader, model, fabric, 0)
        orders.append([[label for _, _, y in batches.epoch(epoch) for label in y.tolist()] for epoch in (0, 1)])
    assert orders[0] == orders[1] and orders[0][0] != orders[0][1]


def test_only_plain_tensor_loaders_and_only_on_cuda() -> None:
    plain = DataLoader(DATA, batch_size=5)
    assert resident(plain, torch.device("cpu")) is None
    cuda = torch.device("cuda")
    assert resident([(1, 2)], cuda) is None
    assert resident(DataLoader(DATA, batch_size=5, collate_fn=lambda rows: rows), cuda) is None
    assert resident(DataLoader(DATA, batch_size=None), cuda) is None


def test_data_that_have_changed_are_copied_again() -> None:
    x, y = torch.zeros(6, 2), torch.arange(6)
    data = TensorDataset(x, y)
    some = Subset(data, [0, 1, 2])
    elsewhere = torch.device("cpu", 0)  # which counts as another device

    def held(chosen: Dataset) -> list[torch.Tensor]:
        return Resident(DataLoader(chosen, batch_size=6), elsewhere).tensors

    first = held(data)
    assert first[0] is not x and held(data)[0] is first[0]
    held(some)
    x.add_(1)
    assert torch.equal(held(data)[0], x) and torch.equal(held(some)[0], x[:3])
    some.indices = [3, 4]
    assert torch.equal(held(some)[1], y[3:5])
    data.tensors = (x + 7, y)
    assert torch.equal(held(data)[0], x + 7)
    with torch.inference_mode():  # tensors of which nobody counts how often they were written to
        data.tensors = (x + 9, y)
    assert torch.equal(held(data)[0], x + 9)
