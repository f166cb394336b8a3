"""Features are read beside a pass only where nothing changes what is read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abnn
from abnn.model.passes import Pass
from tests.conftest import generator


class Changing(nn.Module):
    """Convolutions; the network goes on with what a block said as it is, or changes it in place."""

    def __init__(self, changes: bool) -> None:
        super().__init__()
        self.changes = changes
        self.blocks = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = F.relu(block(x), inplace=self.changes)
        return self.head(x.mean((2, 3)))


def images(count: int = 4) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=generator(1))


@pytest.mark.parametrize("changes", [True, False])
def test_a_network_that_changes_what_blocks_said_is_found(changes: bool) -> None:
    model = abnn.attach(Changing(changes).eval(), images(1))
    assert model.state.allows_beside != changes and Pass(model).state.allows_beside != changes
    assert model.state.reads is None


def test_the_papers_network_can_be_read_beside() -> None:
    backbone = abnn.build_backbone("paper-resnet", classes=4, in_channels=3, width=32, blocks=2)
    assert abnn.attach(backbone.eval(), torch.zeros(1, 3, 32, 32)).state.allows_beside


def test_what_inference_tensors_hide_is_not_read_beside() -> None:
    class Extractor(nn.Module):
        """Features of a network that is known to be frozen."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = Changing(False), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.inference_mode():
                features = self.body(x)
            return self.head(features.clone())

    network, x = Extractor().eval(), images()
    model = abnn.attach(network, x[:1], at="head")
    assert len(model.places) > 2 and not model.state.allows_beside
    torch.testing.assert_close(model(x), network(x))


@torch.no_grad()
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("changes", [True, False])
def test_gives_what_one_stream_gives(changes: bool) -> None:
    model = abnn.attach(Changing(changes).eval().cuda(), images(1).cuda())
    features = []
    for allowed in (model.state.allows_beside, False):
        model.state.allows_beside = allowed
        run = Pass(model, noting=True)
        run(images(64).cuda())
        features.append(run.take_features()[0])
    for one, other in zip(*features):
        torch.testing.assert_close(one, other)
