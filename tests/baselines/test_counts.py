"""Numbers of learned numbers, as counted in the authors' checkpoints and code."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from abnn.attached import Attached
from abnn.baselines import make_method
from abnn.networks.by_name import PaperResNet

MNIST, SVHN = torch.zeros(1, 1, 28, 28), torch.zeros(1, 3, 32, 32)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    "name,variant,channels,expected",
    [
        ("threshold", "reference", 1, 576_778),
        ("threshold", "reference", 3, 577_930),
        ("mc-dropout", "reference", 1, 576_778),
        ("oe", "authors", 1, 576_778),
        ("deep-ensemble", "reference", 1, 5 * 576_778),
        ("woods", "authors", 1, 576_971),
        ("sde-net", "reference", 1, 283_723),
        ("sde-net", "svhn", 3, 322_507),
        ("bbp", "reference", 1, 1_020_682),
        ("bbp", "authors", 1, 1_020_682),
        ("vboe", "authors", 1, 1_020_682),
    ],
)
def test_networks_have_the_size_of_the_protocol(name: str, variant: str, channels: int, expected: int) -> None:
    network = make_method(name, variant).build(partial(PaperResNet, channels), MNIST if channels == 1 else SVHN)
    assert count(network) == expected


def test_attachments_have_the_size_of_the_protocol() -> None:
    model = make_method("abnn", "authors").build(PaperResNet, MNIST)
    assert isinstance(model, Attached)
    assert model.attachment_size == 295_936
    assert count(model) == 576_778 + 295_936


def test_last_layer_vboe_doubles_the_head_alone() -> None:
    assert count(make_method("vboe").build(PaperResNet, MNIST)) == 576_778 + 650
