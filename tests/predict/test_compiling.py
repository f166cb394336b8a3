from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from abnn.predict.compiling import compiled, options, with_network


@pytest.fixture
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that compiling does but the generation of code, which needs a compiler and time."""
    original = nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda self, **how: original(self, backend="eager", dynamic=how["dynamic"])
    )


def network() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))


def test_inside_it_is_compiled_and_gives_the_same(eager_backend: None) -> None:
    net, x = network(), torch.rand(2, 1, 8, 8)
    plain = net(x)
    with compiled([net]):
        assert net._compiled_call_impl is not None
        torch.testing.assert_close(net(x), plain)
    assert net._compiled_call_impl is None
    assert torch.equal(net(x), plain)


def test_nothing_happens_unless_it_is_wanted() -> None:
    net = network()
    with compiled([net], enabled=False):
        assert net._compiled_call_impl is None


def test_an_error_inside_leaves_the_network_as_it_was(eager_backend: None) -> None:
    net = network()
    with pytest.raises(ValueError), compiled([net]):
        raise ValueError
    assert net._compiled_call_impl is None


class Loss:
    def __init__(self, network: nn.Module) -> None:
        self.network = network

    def loss(self, x: Tensor, factor: float = 1.0) -> Tensor:
        return factor * self.network(x).sum()


def test_what_follows_the_network_is_compiled_with_it(eager_backend: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def note(function: Any, **how: Any) -> Any:
        calls.append(how)
        return function

    monkeypatch.setattr(torch, "compile", note)
    net, x = network(), torch.rand(2, 1, 8, 8)
    losses = [Loss(net), Loss(net)]
    assert with_network(losses[0].loss, net, "sum") == losses[0].loss and not calls
    net._compiled_call_impl = net.forward
    first, second, other = (with_network(losses[i].loss, net, kind) for i, kind in ((0, "sum"), (1, "sum"), (0, "b")))
    assert first(x) == second(x) == other(x) == losses[0].loss(x)
    assert calls == 3 * [{"dynamic": False, "options": None}]
    codes = [each.__func__.__code__ for each in (first, second, other)]
    assert codes[0] is codes[1] and codes[0] is not codes[2]  # what is compiled is shared by those of one kind alone


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_only_narrow_networks_need_to_be_told_about_channels_last() -> None:
    net = network().cuda()
    assert options(net) == {"force_layout_optimization": True}
    assert options(nn.Sequential(net, nn.Conv2d(4, 4, 3, groups=2).cuda())) is None
    assert options(nn.Sequential(net, nn.Conv2d(4, 128, 3).cuda())) is None
    assert options(nn.Linear(2, 2).cuda()) is None


def test_nothing_is_asked_of_the_compiler_on_the_cpu() -> None:
    assert options(network()) is None
