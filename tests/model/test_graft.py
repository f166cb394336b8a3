"""Two views of one network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from abnn.errors import AttachError
from abnn.model.graft import graft
from tests.conftest import generator


class Negated(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return -self.inner(x)


def nested() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), nn.Linear(3, 2))


def test_original_stays_and_the_view_changes() -> None:
    network, x = nested(), torch.randn(4, 3, generator=generator())
    network.eval()
    before, inner = network(x), network[0][0]  # type: ignore[index]
    view = graft(network, {inner: Negated(inner)})
    assert network[0][0] is inner and torch.equal(network(x), before)  # type: ignore[index]
    expected = network[1](network[0][1](-inner(x)))  # type: ignore[index]
    torch.testing.assert_close(view(x), expected)


def test_everything_is_shared() -> None:
    network = nested()
    inner = network[0][0]  # type: ignore[index]
    view = graft(network, {inner: Negated(inner)})
    assert {id(p) for p in view.parameters()} == {id(p) for p in network.parameters()}
    assert view[1] is network[1]  # type: ignore[index]
    view.double()  # moving one view moves the other, buffers included
    assert {p.dtype for p in network.parameters()} == {torch.float64}
    assert network[0][1].running_mean.dtype == torch.float64  # type: ignore[index]
    view.train()
    view(torch.randn(4, 3, dtype=torch.float64, generator=generator()))
    assert network[0][1].num_batches_tracked == 1  # type: ignore[index]


def test_a_module_in_two_places_is_replaced_in_both() -> None:
    shared = nn.Linear(2, 2)
    network = nn.ModuleList([nn.Sequential(shared), nn.Sequential(shared)])
    new = Negated(shared)
    view = graft(network, {shared: new})
    assert view[0][0] is new and view[1][0] is new  # type: ignore[index]


def test_nothing_to_replace_gives_the_network_itself() -> None:
    network = nested()
    assert graft(network, {}) is network
    other = nn.Linear(1, 1)
    assert graft(network, {network: other}) is other


def test_missing_children_stay_missing() -> None:
    network = nested()
    network.add_module("gone", None)
    view = graft(network, {network[1]: nn.Identity()})
    assert view._modules["gone"] is None


def test_torchscript_is_refused() -> None:
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    child = next(iter(scripted.children()))
    with pytest.raises(AttachError, match="TorchScript"):
        graft(nn.ModuleList([scripted]), {child: nn.Identity()})
