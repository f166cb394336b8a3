"""The networks of the zoo: of torch, torchvision and timm, small enough to be trained in seconds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from abnn.networks.by_name import build_backbone
from abnn.networks.vision import timm


def convolutions(channels: int, classes: int, width: int = 16) -> nn.Module:
    layers: list[nn.Module] = []
    for number in range(4):
        size = width * 2 ** (number // 2)
        before = channels if number == 0 else width * 2 ** ((number - 1) // 2)
        layers += [nn.Conv2d(before, size, 3, 1 + number % 2, 1), nn.BatchNorm2d(size), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes))


def perceptron(inputs: int, classes: int, width: int = 64, depth: int = 2) -> nn.Module:
    sizes = [inputs, *[width] * depth]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def along_time(channels: int, classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((channels, 16), (16, 32), (32, 32)):
        layers += [nn.Conv1d(before, after, 5, 2, 2), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, classes))


class Recurrent(nn.Module):
    """A gated recurrent unit over a signal, then two layers on its last state."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.unit = nn.GRU(channels, 32, batch_first=True)
        self.hidden, self.head = nn.Linear(32, 32), nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.unit(x.movedim(1, 2))
        return self.head(torch.relu(self.hidden(states[:, -1])))


class Texts(nn.Module):
    """Embeddings of words, two layers of a transformer, the mean over places."""

    def __init__(self, classes: int, words: int = 200, width: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        layers = [nn.TransformerEncoderLayer(width, 4, 64, 0.0, batch_first=True) for _ in range(2)]
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def of_timm(name: str, **options: Any) -> Callable[[int, int], nn.Module]:
    def build(channels: int, classes: int) -> nn.Module:
        return timm().create_model(name, num_classes=classes, in_chans=channels, **options)

    return build


def mixer(channels: int, classes: int) -> nn.Module:
    options = {"img_size": 32, "patch_size": 8, "num_blocks": 4, "embed_dim": 64}
    return timm().models.MlpMixer(num_classes=classes, in_chans=channels, **options)


SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 4}
PICTURES: dict[str, Callable[[int, int], nn.Module]] = {
    "convolutions": convolutions,
    "paper-resnet": lambda channels, classes: build_backbone("paper-resnet", classes, channels, width=32, blocks=3),
    "resnet18": of_timm("resnet18"),
    "mobilenetv3": of_timm("mobilenetv3_small_050"),
    "efficientnet": of_timm("efficientnet_lite0"),
    "convnext": of_timm("convnext_atto", depths=(1, 1, 2, 1), dims=(16, 32, 64, 96)),
    "densenet": of_timm("densenet121", growth_rate=8, block_config=(2, 2, 2)),
    "vit": of_timm("vit_tiny_patch16_224", num_heads=4, **SMALL),
    "mixer": mixer,
}
FITS: list[tuple[str, str, Callable[[], nn.Module]]] = [
    *((name, "digits at 32 pixels", lambda build=build: build(3, 10)) for name, build in PICTURES.items()),  # type: ignore[misc]
    *((name, "shapes", lambda build=build: build(3, 3)) for name, build in PICTURES.items()),  # type: ignore[misc]
    ("convolutions", "digits", lambda: convolutions(1, 10)),
    ("perceptron of pixels", "digits", lambda: nn.Sequential(nn.Flatten(), perceptron(64, 10))),
    ("perceptron", "cancer", lambda: perceptron(30, 2)),
    ("perceptron", "wine", lambda: perceptron(13, 3)),
    ("convolutions along time", "signals", lambda: along_time(1, 4)),
    ("recurrent", "signals", lambda: Recurrent(1, 4)),
    ("transformer", "words", lambda: Texts(5)),
]
"""Name, data set and builder of every network; two seeds of each are 50 fits."""
