"""Networks by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from abnn.errors import InputError
from abnn.networks.by_name import PaperResNet, ResidualBlock, build_backbone
from research.paper import Cell
from research.paper.rows import backbones
from tests.conftest import generator


def size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("channels", "classes", "pixels", "parameters", "grid"),
    [(1, 10, 28, 576_778, 6), (3, 10, 32, 577_930, 7), (3, 2, 32, 577_410, 7)],
)
def test_papers_network_has_the_papers_sizes(
    channels: int, classes: int, pixels: int, parameters: int, grid: int
) -> None:
    net = PaperResNet(channels, classes)
    assert size(net) == parameters and size(net.blocks[0]) == 73_984
    x = torch.zeros(2, channels, pixels, pixels)
    assert net.stem(x).shape == (2, 64, grid, grid) and net(x).shape == (2, classes)


def test_papers_block_is_preactivation_with_identity_shortcut() -> None:
    block = ResidualBlock(8)
    x = torch.randn(2, 8, 5, 5, generator=generator())
    side = F.conv2d(torch.relu(F.group_norm(x, 4)), block.conv1.weight, padding=1)
    side = F.conv2d(torch.relu(F.group_norm(side, 4)), block.conv2.weight, padding=1)
    torch.testing.assert_close(block(x), x + side)


def test_initial_values() -> None:
    torch.manual_seed(0)
    net = PaperResNet()
    assert net.head.weight.std().item() == pytest.approx(1e-3, rel=0.1) and not net.head.bias.any()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
            assert module.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
            assert module.bias is None or not module.bias.any()
    torch.manual_seed(0)
    plain = PaperResNet(kaiming=False)
    assert plain.head.weight.std() > 0.05  # torch's own


def test_small_stem_keeps_the_grid() -> None:
    net = PaperResNet(width=16, blocks=2, stem="small")
    assert net.stem(torch.zeros(1, 1, 8, 8)).shape == (1, 16, 8, 8)


def test_networks_by_name() -> None:
    assert isinstance(build_backbone("paper-resnet", 10, 1, width=8), PaperResNet)
    with torch.device("meta"):
        assert build_backbone("resnet18", 7).fc.out_features == 7  # type: ignore[union-attr]
        timm_net: Any = build_backbone("timm/resnet10t", 5, in_channels=1)
    assert timm_net.get_classifier().out_features == 5


@pytest.mark.parametrize(
    "cell", [cell for cell in backbones("mnist") if "plain" in cell.name], ids=lambda cell: cell.name
)
def test_networks_for_small_grey_pictures(cell: Cell) -> None:
    """Those of table 6 begin with a convolution of one channel that keeps the grid, and no pooling right behind it."""
    assert cell.backbone is not None
    network = build_backbone(**cell.backbone).eval()
    seen: list[tuple[int, ...]] = []
    first = next(part for part in network.modules() if isinstance(part, nn.Conv2d))
    first.register_forward_hook(lambda part, given, made: seen.append(tuple(made.shape)))
    with torch.no_grad():
        assert network(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    assert seen[0][2] >= 26
    assert network.abnn_recipe["small"]


def test_a_start_that_fits_keeps_its_weights() -> None:
    torch.manual_seed(0)
    plain = build_backbone("resnet18", 3)
    torch.manual_seed(0)
    small: Any = build_backbone("resnet18", 3, small=True)
    assert torch.equal(small.conv1.weight, plain.conv1.weight)  # type: ignore[union-attr]
    assert small.conv1.stride == (1, 1) and isinstance(small.maxpool, nn.Identity)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build_backbone("vit_b_16", 2, small=True), "small: got True for .* patches of 16 pixels"),
        (lambda: build_backbone("resnet81", 2), "backbone: got 'resnet81'.*Did you mean 'resnet18'"),
        (
            lambda: build_backbone("timm/resnet10tt", 2),
            "backbone: got 'timm/resnet10tt'.*Did you mean 'timm/resnet10t'",
        ),
        (lambda: build_backbone("timm/xcit_tiny_24", 2), "Did you mean 'timm/xcit_tiny_"),
        (lambda: build_backbone("mlp_mixer", 2), "backbone: got 'mlp_mixer'"),
        (lambda: PaperResNet(stem="big"), "stem: got 'big'"),
        (lambda: PaperResNet(width=7), "width: got 7; accepted: an even number"),
    ],
)
def test_bad_names_are_explained(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert len(str(caught.value)) < 3000  # a hint, not a catalogue
