"""What is held out: the same for a seed, never seen in training, and nothing where inputs cannot be told apart."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import abnn
from abnn.errors import AbnnWarning
from abnn.train.hold_out import FEW, FEWEST, MOST, hold_out
from tests.conftest import mlp
from tests.train.test_fit import QUIET, quiet

COUNT = 200


def rows(count: int = COUNT) -> tuple[Tensor, Tensor]:
    """Inputs whose first feature is their number."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(0))
    x[:, 0] = torch.arange(count)
    return x, torch.arange(count) % 3


class Items(Dataset):
    """The rows as a data set of another kind."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        x, y = rows()
        return x[place], int(y[place])


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(*rows())


class Backwards(RandomSampler):
    """A sampler of the user's own."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT - 1, -1, -1))


def numbers(batches: Any) -> list[int]:
    """Those of all inputs, in the order in which they come."""
    return [int(number) for x, _ in batches for number in x[:, 0]]


TENSORS = TensorDataset(*rows())
LOADERS: dict[str, Any] = {
    "tensors": lambda: DataLoader(TENSORS, 16, shuffle=True),
    "in order": lambda: DataLoader(TENSORS, 16),
    "items": lambda: DataLoader(Items(), 16, shuffle=True),
    "subset": lambda: DataLoader(Subset(Items(), range(COUNT)), 16),
    "list of items": lambda: DataLoader([(x, int(y)) for x, y in zip(*rows())], 16),  # type: ignore[arg-type]
    "own sampler": lambda: DataLoader(TENSORS, 16, sampler=RandomSampler(TENSORS)),
    "workers": lambda: DataLoader(TENSORS, 50, shuffle=True, num_workers=1),
    "list of batches": lambda: list(zip(*(part.split(25) for part in rows()))),
    "tuple of small batches": lambda: tuple(zip(*(part.split(3) for part in rows()))),
    "labels in a list": lambda: [(x, y.tolist()) for x, y in zip(*(part.split(25) for part in rows()))],
    "labels of numpy": lambda: [(x, list(y.numpy())) for x, y in zip(*(part.split(25) for part in rows()))],
    "labels of torch": lambda: [(x, list(y)) for x, y in zip(*(part.split(25) for part in rows()))],
    "single inputs": lambda: list(zip(*(part.split(1) for part in rows()))),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_input_is_in_one_of_both_parts(kind: str) -> None:
    rest, out = hold_out(LOADERS[kind](), 0.2, seed=3)
    assert out is not None
    seen, held = numbers(rest), numbers(out)
    assert sorted(seen + held) == list(range(COUNT)) and len(held) == 40
    labels = {int(x[0]): int(y) for batch in (*rest, *out) for x, y in zip(*batch)}
    assert labels == {number: number % 3 for number in range(COUNT)}
    assert all(len(x) == len(y) > 0 for part in (rest, out) for x, y in part)


def test_data_are_not_copied() -> None:
    assert all(part is not None and part.dataset.dataset is TENSORS for part in hold_out(LOADERS["tensors"](), 0.2, 0))


@pytest.mark.parametrize("kind", ["tensors", "items", "list of batches"])
def test_a_split_belongs_to_its_seed(kind: str) -> None:
    first, again, other = (numbers(hold_out(LOADERS[kind](), 0.2, seed)[1]) for seed in (1, 1, 2))
    assert first == again
    assert (first == other) is (kind == "list of batches")  # of which the ends are held out


def test_a_split_does_not_depend_on_the_global_random_state() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        _, out = hold_out(LOADERS["tensors"](), 0.2, 0)
        assert torch.equal(state, torch.get_rng_state())
        found.append(numbers(out))
    assert found[0] == found[1]


def test_order_and_settings_of_the_loader_stay() -> None:
    def collate(batch: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
        return [torch.stack(parts) for parts in zip(*batch)]

    loader = DataLoader(TENSORS, 16, shuffle=True, drop_last=True, collate_fn=collate, generator=torch.Generator())
    rest, out = hold_out(loader, 0.2, 0)
    assert out is not None and rest.collate_fn is collate and rest.generator is loader.generator
    assert [len(x) for x, _ in rest] == [16] * 10  # 160 inputs
    assert [len(x) for x, _ in out] == [16, 16, 8]  # of which none is dropped
    assert numbers(out) == sorted(numbers(out)) and numbers(rest) != sorted(numbers(rest))
    assert numbers(hold_out(LOADERS["in order"](), 0.2, 0)[0]) == sorted(numbers(rest))


def test_a_subset_is_split_as_a_data_set_is() -> None:
    chosen = list(range(10, 160))
    generator = torch.Generator()
    rest, out = hold_out(DataLoader(TENSORS, 16, sampler=SubsetRandomSampler(chosen, generator)), 0.2, 0)
    assert out is not None and sorted(numbers(rest) + numbers(out)) == chosen and len(numbers(out)) == 30
    assert numbers(rest) != sorted(numbers(rest)) and rest.generator is generator


def test_weights_of_items_stay() -> None:
    """Rare items come as often as they did, and those of no weight never; what is held out comes once, as in the data."""
    weights = [0.0] * 20 + [1.0] * 160 + [9.0] * 20
    sampler = WeightedRandomSampler(weights, 3600, generator=torch.Generator().manual_seed(0))
    rest, out = hold_out(DataLoader(TENSORS, 16, sampler=sampler), 0.2, 0)
    assert out is not None
    seen, held = numbers(rest), numbers(out)
    assert len(held) == len(set(held)) == 36 and not set(seen) & set(held) and min(seen + held) >= 20
    kept = [20 * 9 - 9 * sum(each >= 180 for each in held), 160 - sum(each < 180 for each in held)]
    assert len(seen) == 2880
    assert sum(each >= 180 for each in seen) / len(seen) == pytest.approx(kept[0] / sum(kept), abs=0.03)


def test_one_large_batch_is_not_dropped() -> None:
    rest, out = hold_out(DataLoader(TENSORS, COUNT, drop_last=True), 0.2, 0)
    assert out is not None and [len(x) for x, _ in rest] == [160]


def test_no_batch_of_one_is_left() -> None:
    """Batch normalisation cannot learn from it."""
    rest, out = hold_out(DataLoader(TENSORS, 53), 0.2, 0)  # 160 = 3 * 53 + 1
    assert out is not None and [len(x) for x, _ in rest] == [53, 53, 53, 2]
    assert len(numbers(out)) == 39


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(TENSORS, 16, sampler=SubsetRandomSampler([*range(150), 3])),
        DataLoader(TENSORS, 16, sampler=WeightedRandomSampler([1.0] * COUNT, COUNT, replacement=False)),
        DataLoader(TENSORS, 16, sampler=RandomSampler(TENSORS, replacement=True)),
        DataLoader(TENSORS, 16, sampler=RandomSampler(TENSORS, num_samples=50)),
        DataLoader(TENSORS, 16, sampler=Backwards(TENSORS)),
        DataLoader(TENSORS, batch_sampler=BatchSampler(SequentialSampler(TENSORS), 16, False)),
        DataLoader(TENSORS, batch_size=None),
        DataLoader(Stream(), 16),
        (batch for batch in LOADERS["list of batches"]()),
        [rows()[0]],
        [(rows()[0], rows()[1][:50])],
        [(3, 4)],
        [(torch.tensor(1.0), torch.tensor(1))] * 50,
        [],
        None,
    ],
)
def test_what_cannot_be_split_stays_as_it_is(loader: Any) -> None:
    rest, out = hold_out(loader, 0.2, 0)
    assert rest is loader and out is None


def test_custom_samplers_are_not_plain() -> None:
    class Mine(Sampler):
        def __iter__(self) -> Iterator[int]:
            return iter(range(COUNT))

        def __len__(self) -> int:
            return COUNT

    loader = DataLoader(TENSORS, 16, sampler=Mine())
    assert hold_out(loader, 0.2, 0) == (loader, None)


@pytest.mark.parametrize("share", [0.0, 0.05, 0.5])
def test_too_few_are_not_worth_it_and_many_are_enough(share: float) -> None:
    for count in (5 * FEWEST - 1, 5 * FEWEST, 10 * MOST):
        x, y = torch.zeros(count, 1), torch.zeros(count, dtype=torch.long)
        expected = min(int(share * count), MOST)
        for loader in (DataLoader(TensorDataset(x, y), 64), list(zip(x.split(64), y.split(64)))):
            rest, out = hold_out(loader, share, 0)
            if expected < FEWEST:
                assert rest is loader and out is None
            else:
                assert out is not None
                assert sum(len(part) for part, _ in out) == expected
                assert sum(len(part) for part, _ in rest) == count - expected


class Watching(nn.Module):
    """Notes which inputs pass it while gradients are recorded."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.seen = mlp(), set[int]()

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen |= {int(number) for number in x[:, 0]}
        return self.body(x / 100)


@pytest.mark.parametrize("kind", ["tensors", "items", "list of batches"])
def test_training_sees_nothing_of_what_is_held_out(kind: str) -> None:
    torch.manual_seed(0)
    network = Watching().eval()
    model = abnn.attach(network, rows()[0][:1])
    network.seen.clear()
    watched = next(module for module in model.net.modules() if isinstance(module, Watching))
    watched.seen = seen = set[int]()
    abnn.fit(model, LOADERS[kind](), outliers=None, epochs=2, seed=5, **QUIET)
    rest, out = hold_out(LOADERS[kind](), 0.2, 5)
    assert seen == set(numbers(rest)) and seen.isdisjoint(numbers(out))
    seen.clear()
    abnn.fit(model, LOADERS[kind](), **quiet(outliers=None, epochs=1, hold_out=0))
    assert seen == set(range(COUNT))


def test_a_fit_on_few_inputs_is_said_to_be() -> None:
    x, y = rows(FEW)
    some = TensorDataset(x[:7], y[:7])
    few = [
        [(x[:4], y[:4]), (x[4:7], y[4:7])],
        DataLoader(some, batch_size=4),
        DataLoader(some, batch_sampler=BatchSampler(SequentialSampler(some), 4, False)),
        DataLoader(TensorDataset(x, y), batch_size=4, sampler=SubsetRandomSampler(range(7))),
    ]
    model = abnn.attach(mlp(), x[:1])
    for loader in few:
        with pytest.warns(
            AbnnWarning, match="loader: got few inputs, 7; accepted: at least 100, .*Fit on more"
        ) as caught:
            abnn.fit(model, loader, epochs=0, **QUIET)
        assert [each.filename for each in caught if "few inputs" in str(each.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*few inputs", AbnnWarning)
        abnn.fit(model, [(x, y)], epochs=0, **QUIET)
        with pytest.warns(AbnnWarning, match="loader: got a DataLoader of whose inputs none can be held out") as caught:
            abnn.fit(model, DataLoader(Stream(), batch_size=4), epochs=0, **QUIET)  # of which the number is not known
    assert [each.filename for each in caught if "none can be held out" in str(each.message)] == [__file__]
    assert hold_out([(x, y)], 0.2, 0)[1] is not None and hold_out([(x[1:], y[1:])], 0.2, 0)[1] is None
