"""Features and a small trained digit reader that several tests share."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines.posthoc import Features, Head
from abnn.data.digits import DigitsData, Labelled, load_digits
from tests.conftest import generator

CLASSES, WIDTH = 4, 12


def made_up(count: int = 200, seed: int = 0, spread: float = 1.0) -> Features:
    """Gaussian clusters as last features and as block statistics, with the logits of a fixed head."""
    labels = torch.randint(CLASSES, (count,), generator=generator(seed))
    centres = 2 * torch.randn(CLASSES, WIDTH, generator=generator(100))
    rotation = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator(101))).Q
    mixing = torch.linspace(0.5, 2, WIDTH)[:, None] * rotation  # correlated, with variances of 0.25 to 4
    last = centres[labels] + spread * torch.randn(count, WIDTH, generator=generator(seed + 1)) @ mixing
    blocks = torch.cat([last, torch.randn(count, 3, generator=generator(seed + 2))], dim=1)
    head = Head(
        0.4 * torch.randn(CLASSES, WIDTH, generator=generator(102)), torch.randn(CLASSES, generator=generator(103))
    )
    return Features(head(last), last, blocks, labels, head)


def layer(channels: int, width: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, width, 3, stride, padding=1), nn.BatchNorm2d(width), nn.ReLU())


@functools.cache
def digit_reader() -> tuple[nn.Module, DigitsData]:
    """A small network after a few epochs on the embedded digits."""
    data = load_digits(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        body = nn.Sequential(layer(1, 16), layer(16, 32, stride=2), layer(32, 32))
        network = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
        optimizer = torch.optim.AdamW(network.parameters(), 1e-2)
        for _ in range(4):
            for rows in torch.randperm(len(data.train.x)).split(64):
                optimizer.zero_grad()
                F.cross_entropy(network(data.train.x[rows]), data.train.y[rows]).backward()
                optimizer.step()
    return network.eval(), data


def batches(part: Labelled, size: int = 256) -> list[tuple[Tensor, Tensor]]:
    return list(zip(part.x.split(size), part.y.split(size)))
