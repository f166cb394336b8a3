from __future__ import annotations

import pytest
import torch
from torch import nn

from abnn.compiling import compiled, lay_out


@pytest.fixture
def eager_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that compiling does but the generation of code, which needs a compiler and time."""
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: original(self, backend="eager", **options))


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
    with compiled([net], wanted=False):
        assert net._compiled_call_impl is None


def test_an_error_inside_leaves_the_network_as_it_was(eager_backend: None) -> None:
    net = network()
    with pytest.raises(ValueError), compiled([net]):
        raise ValueError
    assert net._compiled_call_impl is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_layout_changes_neither_values_nor_identity() -> None:
    net = network().cuda()
    before = {name: (parameter, parameter.detach().clone()) for name, parameter in net.named_parameters()}
    lay_out([net], torch.channels_last)
    assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    for name, parameter in net.named_parameters():
        assert parameter is before[name][0] and torch.equal(parameter, before[name][1])
