from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from abnn.baselines import make_method
from abnn.baselines.base import Minimise
from abnn.baselines.oe import uniform_bce, uniform_cross_entropy
from abnn.networks.by_name import build_backbone
from tests.baselines.samples import TINY, digits, generator, make_run, quick


def log_softmax(logits: Tensor) -> np.ndarray:
    z = logits.detach().double().numpy()
    return z - np.log(np.exp(z).sum(1, keepdims=True))


def bce(logits: Tensor, target: float) -> float:
    p = 1 / (1 + np.exp(-logits.detach().double().numpy()))
    return float(-(target * np.log(p) + (1 - target) * np.log(1 - p)).mean())


def test_losses_follow_their_formulas() -> None:
    logits = 3 * torch.randn(7, 5, generator=generator(), dtype=torch.float64)
    assert uniform_cross_entropy(logits).item() == pytest.approx(-log_softmax(logits).mean(1).mean(), rel=1e-12)
    assert uniform_bce(logits).item() == pytest.approx(bce(logits, 0.2), rel=1e-12)


def test_losses_have_the_minima_of_the_protocol() -> None:
    floor = uniform_bce(torch.full((1, 10), -np.log(9.0), dtype=torch.float64))
    assert floor.item() == pytest.approx(0.3251, abs=5e-5)
    assert uniform_bce(torch.zeros(1, 2)).item() == pytest.approx(np.log(2))
    assert uniform_cross_entropy(torch.full((3, 10), 4.0)).item() == pytest.approx(np.log(10))


@pytest.mark.parametrize("variant,weight", [("reference", 0.5), ("authors", 1.0)])
def test_one_step_minimises_the_sum(variant: str, weight: float) -> None:
    method = make_method("oe", variant)
    network = build_backbone(**TINY)
    torch.nn.init.normal_(network.head.weight, generator=generator())  # type: ignore[union-attr,arg-type]
    run = make_run(method, network)
    trainable = method.stages(run)[0].make()
    assert isinstance(trainable, Minimise) and run.outliers is not None
    x, y = digits()
    losses = trainable.losses(x, y, generator(3))
    made = run.outliers(x, y, generator(3))
    assert bool((made.severity == 1).all())
    with torch.no_grad():
        inside, outside = network(x), network(made.x)
    assert losses["cross_entropy"].item() == pytest.approx(-log_softmax(inside)[np.arange(len(y)), y].mean(), rel=1e-5)
    wanted = -log_softmax(outside).mean() if variant == "reference" else bce(outside, 0.1)
    assert losses["outliers"].item() == pytest.approx(weight * wanted, rel=1e-5)


def test_authors_noise_is_theirs() -> None:
    method = make_method("oe", "authors")
    run = make_run(method, build_backbone(**TINY))
    x = torch.zeros(400, 3, 8, 8)
    made = run.make_outliers(x, torch.zeros(400, dtype=torch.long), generator()).x
    assert torch.equal(made[:, 0], made[:, 2])  # one map for all channels
    assert made[:, 0].std().item() == pytest.approx(16, rel=0.02)  # 25,600 numbers: standard error 0.07


def test_outliers_become_undecided() -> None:
    options: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01, "schedule": "cycle", "kaiming": False}
    x = digits().x
    noise = torch.rand(64, 1, 8, 8, generator=generator())
    entropies = {}
    for name in ("threshold", "oe"):
        more: dict[str, Any] = {"outliers": {"name": "noise"}} if name == "oe" else {}
        model = quick(make_method(name, **options, **more), 15)
        entropies[name] = model.predict(noise, score="entropy").score.mean(), model.predict(x).score.mean()
    assert entropies["oe"][0] > 0.9
    assert entropies["threshold"][0] < entropies["oe"][0]
