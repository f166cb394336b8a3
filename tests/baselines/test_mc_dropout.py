from __future__ import annotations

from typing import Any

import pytest
import torch

from abnn.baselines import make_method
from abnn.baselines.mc_dropout import DropoutHead, draw_masks
from tests.baselines.samples import digits, quick
from tests.conftest import SmallBatchNormNet

QUICK: dict[str, Any] = {"optimizer": "adamw", "lr": 0.01, "schedule": "cycle", "kaiming": False}


def test_dropout_is_active_at_prediction() -> None:
    model = quick(make_method("mc-dropout", rate=0.3, **QUICK), 5)
    samples = model.predict(digits().x[:10], draws=20).samples
    assert samples.std(0).max() > 1e-3
    assert not torch.equal(samples[0], samples[1])


def test_a_draw_is_a_mask_of_features() -> None:
    model = quick(make_method("mc-dropout", rate=0.3, **QUICK), 1)
    network = model.network
    assert isinstance(network, DropoutHead)
    x = digits().x[:4]
    masks = draw_masks(3, 8, 0.3, seed=5)
    samples = model.predict(x, draws=3, seed=5).samples
    with torch.no_grad():
        features = network.trunk(x)
        for s in range(3):
            kept = features * masks[s] / 0.7
            assert torch.allclose(samples[s], network.head(kept).softmax(1), atol=1e-6)


def test_masks_have_the_rate() -> None:
    masks = draw_masks(200, 100, 0.1, seed=0)
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert masks.mean().item() == pytest.approx(0.9, abs=5 * (0.09 / 20_000) ** 0.5)
    assert torch.equal(masks[:7], draw_masks(7, 100, 0.1, seed=0))


def test_without_dropout_it_is_the_plain_network() -> None:
    x = digits().x[:5]
    plain = quick(make_method("threshold", **QUICK), 2).predict(x).probs
    assert torch.allclose(quick(make_method("mc-dropout", rate=0.0, **QUICK), 2).predict(x).probs, plain, atol=1e-6)


def test_training_drops_features_of_each_input_by_itself() -> None:
    model = quick(make_method("mc-dropout", rate=0.5), 1)
    network = model.network.train()
    x = digits().x[:1].expand(50, -1, -1, -1)
    outputs = network(x)
    assert not torch.allclose(outputs[0], outputs[1])
    network.eval()


def test_it_takes_networks_that_are_not_the_papers() -> None:
    model = quick("mc-dropout", 1, backbone=SmallBatchNormNet(10))
    assert model.predict(digits().x[:2], draws=3).samples.shape == (3, 2, 10)
