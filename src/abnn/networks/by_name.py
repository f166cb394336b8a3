"""Networks by name: the paper's own, and those of torchvision and timm."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from abnn.errors import InputError, explain, unknown
from abnn.networks.vision import timm, torchvision


def group_norm(width: int) -> nn.GroupNorm:
    """Return a norm by pairs of channels, as the paper's 32 of 64; alone, a channel would hide its mean from the head."""
    return nn.GroupNorm(width // 2, width)


class ResidualBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))): pre-activation, constant width, no bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = group_norm(width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = group_norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        side = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(side)))


class PaperResNet(nn.Module):
    """The network of the paper's experiments, which calls it ResNet18: six blocks of 64 channels on a small grid.

    stem "paper" is conv 3x3 without padding and two conv 4x4 with stride 2 (28 -> 6, 32 -> 7 pixels); stem "small" is one
    conv 3x3 with padding, for images of about 8x8. 576,778 parameters with the defaults.
    ``kaiming`` initialises convolutions by fan-out and the head by N(0, 10^-3), as the deterministic methods of the paper do;
    without it torch's defaults stay, as in the authors' Bayesian methods.
    """

    def __init__(
        self,
        in_channels: int = 1,
        classes: int = 10,
        width: int = 64,
        blocks: int = 6,
        stem: str = "paper",
        kaiming: bool = True,
    ) -> None:
        super().__init__()
        if stem not in ("paper", "small"):
            raise unknown("stem", stem, ("paper", "small"))
        if width < 2 or width % 2:
            raise InputError(explain("width", width, "an even number of channels (group normalisation by pairs)"))
        layers: list[nn.Module] = [nn.Conv2d(in_channels, width, 3, padding=1 if stem == "small" else 0)]
        for _ in range(2 if stem == "paper" else 0):
            layers += [group_norm(width), nn.ReLU(inplace=True), nn.Conv2d(width, width, 4, 2, 1)]
        self.stem = nn.Sequential(*layers)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(blocks)])
        self.norm = group_norm(width)
        self.head = nn.Linear(width, classes)
        if kaiming:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.head.weight, std=1e-3)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def build_backbone(name: str, classes: int, in_channels: int = 3, **options: Any) -> nn.Module:
    """Return a network by name: "paper-resnet", a torchvision name such as "resnet18", or "timm/NAME".

    Weights are random, unless ``pretrained=True`` for timm or ``weights="DEFAULT"`` for torchvision. torchvision's networks
    take two changes: other ``in_channels``, with a new first convolution, and ``small=True`` for about 32 pixels: the first
    convolution has stride 1, and no pooling follows it. The network remembers how it was built, so that a model saved with
    its backbone can be loaded alone; options beyond plain sizes (:mod:`abnn.networks.recipe`) are not remembered.
    """
    from abnn.networks.recipe import make_recipe

    network = _build(name, classes, in_channels, dict(options))
    network.__dict__["abnn_recipe"] = make_recipe(name, classes, in_channels, options)
    return network


def _build(name: str, classes: int, in_channels: int, options: dict[str, Any]) -> nn.Module:
    if name == "paper-resnet":
        return PaperResNet(in_channels, classes, **options)
    if name.startswith("timm/"):
        module = timm()
        if name[5:] not in module.list_models():
            raise unknown("backbone", name, [f"timm/{each}" for each in module.list_models()])
        return module.create_model(name[5:], num_classes=classes, in_chans=in_channels, **options)
    models = torchvision().models
    if name not in models.list_models(module=models):
        raise unknown("backbone", name, ["paper-resnet", "timm/NAME", *models.list_models(module=models)])
    small = options.pop("small", False)
    network = models.get_model(name, num_classes=classes, **options)
    if in_channels != 3 or small:
        _change_start(network, in_channels, small)
    return network


def _change_start(network: nn.Module, in_channels: int, small: bool) -> None:
    """Put another convolution in the place of the first one; where it fits, with the same weights."""
    place, first = next((each, part) for each, part in network.named_modules() if isinstance(part, nn.Conv2d))
    if small and first.stride == first.kernel_size and first.stride != (1, 1):
        actual = f"True for a network that first cuts pictures into patches of {first.stride[0]} pixels"
        fix = "Leave it out and enlarge the pictures, or set the sizes of a transformer: image_size=32, patch_size=4."
        raise InputError(explain("small", actual, "True for networks that begin with an overlapping convolution", fix))
    form: dict[str, Any] = {"kernel_size": first.kernel_size, "padding": first.padding, "bias": first.bias is not None}
    replacement = nn.Conv2d(in_channels, first.out_channels, stride=1 if small else first.stride, **form)  # type: ignore[arg-type]
    if in_channels == first.in_channels:
        replacement.load_state_dict(first.state_dict())
    holder, _, own = place.rpartition(".")
    parent = network.get_submodule(holder)
    setattr(parent, own, replacement)
    pools = [each for each, part in parent.named_children() if isinstance(part, nn.MaxPool2d)]
    if small and pools:
        setattr(parent, pools[0], nn.Identity())
