"""Passes that are used again: only where nothing has changed, and by one prediction at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.predict import spare as module
from abnn.predict.passes import PredictionPass
from abnn.predict.runtime import runtime_of
from tests.conftest import generator, randomise_attachments, with_score


class Counting(nn.Module):
    """A network that can remember things, in ways that a pass must not carry to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.scale = 1.0
        self.factors = [1.0]
        self.remembers = False
        self.state: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = self.blocks(x) * self.scale * self.factors[0]
        if self.remembers:
            h = h if self.state is None else h + 1
            self.state = h
        return self.head(h)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every pass that is made."""
    passes: list[Any] = []
    make = PredictionPass.__init__

    def count(self: PredictionPass, *args: Any, **options: Any) -> None:
        passes.append(self)
        make(self, *args, **options)

    monkeypatch.setattr(PredictionPass, "__init__", count)
    return passes


@pytest.fixture
def x() -> Tensor:
    return torch.randn(5, 6, generator=generator(1))


@pytest.fixture
def model(x: Tensor) -> Attached:
    torch.manual_seed(0)
    return with_score(randomise_attachments(abnn.attach(Counting().eval(), x[:1])), torch.randn(40, 6))


def fresh(model: Attached, x: Tensor, **options: Any) -> Tensor:
    """What a prediction says that uses no other's pass."""
    del model.__dict__["_runtime"]
    return model.predict(x, **options).samples


def test_the_same_prediction_makes_one_pass(model: Attached, x: Tensor, made: list[Any]) -> None:
    first = model.predict(x).samples
    assert torch.equal(model.predict(x).samples, first) and len(made) == 1
    assert torch.equal(model.predict(x[:2]).samples[:, :1], model.predict(x[:2]).samples[:, :1]) and len(made) == 1
    model.predict(x, draws=3)
    model.predict(x, draws=3)
    assert len(made) == 2 and len(runtime_of(model).spare) == 2


def test_draws_that_nobody_asks_for_again_are_not_kept(model: Attached, x: Tensor) -> None:
    model.predict(x, draws=2, seed=None)
    assert len(runtime_of(model).spare) == 0
    for seed in range(40):
        model.predict(x, draws=2, seed=seed)
    kept = runtime_of(model).spare
    assert len(kept) <= min(len(runtime_of(model).noise), module.MOST)


CHANGES = {
    "a weight in place": lambda net: net.head.weight.data.add_(1),
    "another module": lambda net: net.blocks.__setitem__(1, nn.Tanh()),
    "a number": lambda net: setattr(net, "scale", 2.0),
    "a list": lambda net: net.factors.__setitem__(0, 3.0),
    "a hook": lambda net: net.head.register_forward_hook(lambda *all: all[-1] * 2),
    "a buffer": lambda net: net.register_buffer("more", torch.zeros(1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_is_seen(model: Attached, x: Tensor, change: str) -> None:
    before = model.predict(x).samples
    CHANGES[change](model.net)
    after = model.predict(x).samples
    assert torch.equal(after, before) == (change == "a buffer")
    assert torch.equal(after, fresh(model, x))


def test_what_a_pass_remembers_stays_with_it(model: Attached, x: Tensor, made: list[Any]) -> None:
    model.net.remembers = True  # type: ignore[assignment]
    first = model.predict(x).samples
    assert torch.equal(model.predict(x).samples, first) and len(made) == 2
    assert model.net.state is None


def test_a_pass_that_failed_is_not_used_again(model: Attached, x: Tensor, made: list[Any]) -> None:
    expected = model.predict(x).samples
    model.net.factors[0] = "none"  # type: ignore[index]
    with pytest.raises(TypeError):
        model.predict(x)
    model.net.factors[0] = 1.0  # type: ignore[index]
    assert torch.equal(model.predict(x).samples, expected) and len(made) == 3


def test_threads_have_passes_of_their_own(model: Attached, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    expected = {draws: model.predict(x, draws=draws).samples for draws in (0, 2)}
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: (n % 3 and 2, model.predict(x, draws=n % 3 and 2).samples), range(90)))
    assert all(torch.equal(samples, expected[draws]) for draws, samples in found)
    assert len(runtime_of(model).spare) <= 3
