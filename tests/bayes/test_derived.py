"""Constants that follow from buffers: made once, and again after every kind of change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from abnn.bayes.derived import Derived


class Doubled(NamedTuple):
    value: Tensor


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Buffer(torch.ones(3))
        self.made = 0
        self._derived: Derived[Doubled] = Derived()

    def ready(self) -> Tensor:
        return self._derived.get([self.own], self._make).value

    def _make(self) -> Doubled:
        self.made += 1
        return Doubled(2 * self.own)


class Itself(Module):
    def _make(self) -> Doubled:
        self.made += 1
        return Doubled(self.own)


def test_is_made_once() -> None:
    module = Module()
    assert torch.equal(module.ready(), torch.full((3,), 2.0))
    module.ready()
    assert module.made == 1


@pytest.mark.parametrize("inference", [False, True])
def test_every_change_is_seen(inference: bool) -> None:
    module = Module()
    module.ready()
    with torch.inference_mode(inference):
        module.own.fill_(3)
        assert torch.equal(module.ready(), torch.full((3,), 6.0))
        module.load_state_dict({"own": torch.full((3,), 4.0)})
        assert torch.equal(module.ready(), torch.full((3,), 8.0))
        module.own = torch.full((3,), 5.0)
        assert torch.equal(module.ready(), torch.full((3,), 10.0))
        module.own += 1
        assert torch.equal(module.ready(), torch.full((3,), 12.0))
    assert not module.ready().is_inference()


@pytest.mark.parametrize(
    "move", [lambda module: module.double(), lambda module: setattr(module.own, "data", 2 * module.own.data)]
)
def test_a_parameter_that_is_moved_is_seen(move: Callable[[nn.Module], object]) -> None:
    """It stays the same object, which nobody has written to."""
    module = Module()
    module.own = nn.Parameter(torch.ones(3))
    own, version = module.own, module.own._version
    module.ready()
    move(module)
    assert module.own is own and own._version == version
    assert module.ready().dtype == own.dtype and torch.equal(module.ready(), 2 * own.detach())


def test_a_copy_has_its_own() -> None:
    module = Module()
    module.ready()
    other = copy.deepcopy(module)
    other.own.fill_(0)
    assert not other.ready().any() and module.ready().all()
    assert torch.equal(module.double().ready(), torch.full((3,), 2.0, dtype=torch.float64))


def test_what_is_written_while_values_are_made_is_seen_next_time() -> None:
    """As by a fit in another thread: values of before must not pass for those of after."""

    class Interrupted(Module):
        def _make(self) -> Doubled:
            made = super()._make()
            if self.made == 1:
                self.own.fill_(3)
            return made

    module = Interrupted()
    assert torch.equal(module.ready(), torch.full((3,), 2.0))
    assert torch.equal(module.ready(), torch.full((3,), 6.0))
    assert module.made == 2


def test_values_that_are_buffers_do_not_make_themselves_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where values stay where they lie, as on CUDA, writing them must not count as a change of a buffer."""
    monkeypatch.setattr("abnn.bayes.derived._lie_alike", lambda old, new: True)
    module = Itself()
    first = module.ready()
    module.own.fill_(5)
    assert module.ready() is first
    assert torch.equal(first, torch.full((3,), 5.0))
    module.ready()
    assert module.made == 2
