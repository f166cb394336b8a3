"""Small models that are exported once for all tests, and inputs of every kind to compare on."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import abnn
from abnn.networks.by_name import PaperResNet
from tests.conftest import generator, mlp, trained, with_score

NAMES = ["light", "dark", "striped"]


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noise around three patterns, 1 x 8 x 8, in [0, 1]."""
    y = torch.arange(count) % 3
    stripes = (torch.arange(8) % 2).float().expand(8, 8)
    patterns = torch.stack([torch.full((8, 8), 0.7), torch.full((8, 8), 0.3), 0.2 + 0.6 * stripes])
    noise = torch.randn(count, 8, 8, generator=generator(seed))
    return (patterns[y] + 0.2 * noise).clamp(0, 1)[:, None], y


def every_kind(x: Tensor) -> Tensor:
    """Ordinary, changed, far, constant and extreme inputs, made from ordinary ones."""
    noise = torch.randn(x.shape, generator=generator(9))
    constant = torch.linspace(-2, 3, len(x)).view(-1, *[1] * (x.ndim - 1)).expand_as(x)
    sizes = torch.logspace(1, 30, len(x)).view(-1, *[1] * (x.ndim - 1))
    return torch.cat([x, 0.7 * x + 0.2, x + 0.5 * noise, 5 * noise, constant, sizes * noise, torch.zeros_like(x[:1])])


def fitted(model: abnn.Attached, x: Tensor, y: Tensor, config: abnn.TriageConfig | None = None) -> abnn.Attached:
    """The model with a score learnt in a few steps, and thresholds."""
    with_score(model, x[:96], y[:96])
    abnn.calibrate(model, [(x, y)], config or abnn.TriageConfig(), progress=False)
    return model


def fresh_network() -> nn.Module:
    return PaperResNet(width=8, blocks=2, classes=3, stem="small")


@cache
def picture_model() -> abnn.Attached:
    x, y = pictures(192, 0)
    torch.manual_seed(0)
    network = trained(fresh_network(), x, y, steps=30)
    model = fitted(abnn.attach(network, x[:1]), x, y)
    model.extra = {"class_names": NAMES}
    return model


class Reader(nn.Module):
    """Words, two layers for each of them, their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 16)
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.words(x)).mean(1))


@cache
def word_model() -> abnn.Attached:
    x = torch.randint(9, (160, 6), generator=generator(1))
    y = (x.sum(1) > 24).long()
    torch.manual_seed(0)
    network = trained(Reader(), x, y, steps=40)
    return fitted(abnn.attach(network, x[:1], last=1), x, y)  # one attachment: each takes time to trace


def drawing_table_model() -> abnn.Attached:
    """Random draws, and thresholds for each class."""
    x = torch.randn(240, 6, generator=generator(2))
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()
    torch.manual_seed(0)
    model = abnn.attach(trained(mlp(), x, y, steps=40), x[:1])
    return fitted(model, x, y, abnn.TriageConfig(draws=3, seed=5, per_class=True, noticed=0.2, rejected=0.1))


class TwoInputs(nn.Module):
    """One number from two tables side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(features=9, classes=1)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.net(torch.cat([left, right], 1))


def regression_model() -> tuple[abnn.Attached, dict[str, Tensor]]:
    """A calibrated regression that takes a dict of two inputs, and some of these."""
    x = {"left": torch.randn(160, 6, generator=generator(3)), "right": torch.randn(160, 3, generator=generator(4))}
    y = x["left"][:, :1] + x["right"][:, :1] * 0.5
    torch.manual_seed(0)
    config = abnn.AttachConfig(task="regression")
    model = abnn.attach(TwoInputs().eval(), {k: v[:1] for k, v in x.items()}, last=1, config=config)
    batches = [({k: v[i : i + 40] for k, v in x.items()}, y[i : i + 40]) for i in range(0, 160, 40)]
    abnn.fit(model, batches, epochs=0, progress=False)
    abnn.calibrate(model, batches, progress=False)
    return model, x
