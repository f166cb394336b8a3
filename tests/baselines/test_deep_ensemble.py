from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from abnn.baselines import make_method
from abnn.baselines.deep_ensemble import Ensemble
from abnn.networks.by_name import build_backbone
from abnn.train.randomness import number
from tests.baselines.samples import TINY, digits, quick
from tests.conftest import SmallBatchNormNet

SETTINGS: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "schedule": "cosine"}
DIFFERENT = {**TINY, "kaiming": False}


def first_members(count: int, seed: int) -> list[nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(number("init", seed))
        return [build_backbone(**DIFFERENT) for _ in range(count)]


@pytest.mark.parametrize("stacked", [True, False])
def test_members_are_those_of_separate_training(stacked: bool) -> None:
    together = quick(make_method("deep-ensemble", members=3, stacked=stacked, **SETTINGS), 3, DIFFERENT, seed=7)
    x = digits().x[:20]
    prediction = together.predict(x)
    for index, start in enumerate(first_members(3, 7)):
        alone = quick(make_method("threshold", **SETTINGS), 3, backbone=start, seed=7)
        # 9 steps in float32; the two ways differ by the order of sums, 1e-7 a step, growing.
        torch.testing.assert_close(prediction.samples[index], alone.predict(x).probs, atol=1e-4, rtol=1e-3)
    assert not torch.allclose(prediction.samples[0], prediction.samples[1], atol=1e-3)


def test_the_prediction_is_the_average() -> None:
    model = quick(make_method("deep-ensemble", members=3), 1)
    assert isinstance(model.network, Ensemble)
    x = digits().x[:6]
    with torch.no_grad():
        by_hand = [member(x).softmax(1) for member in model.network.members]
    prediction = model.predict(x, draws=50)
    assert torch.allclose(prediction.probs, (by_hand[0] + by_hand[1] + by_hand[2]) / 3, atol=1e-6)
    assert len(prediction.samples) == 3  # members, whatever the number of draws


def test_stacked_and_separate_passes_agree() -> None:
    members = first_members(4, 0)
    x = digits().x[:8]
    stacked, separate = Ensemble(members, True), Ensemble(members, False)
    torch.testing.assert_close(stacked(x), separate(x), atol=1e-5, rtol=1e-4)
    stacked(x).square().sum().backward()
    gradient = members[2].head.weight.grad.clone()  # type: ignore[union-attr,operator]
    for member in members:
        member.zero_grad()
    separate(x).square().sum().backward()
    torch.testing.assert_close(members[2].head.weight.grad, gradient, atol=1e-5, rtol=1e-3)  # type: ignore[union-attr]


def test_running_statistics_are_kept_member_by_member() -> None:
    """A stack cannot update the statistics of batch normalisation, so such members run one after another."""
    model = quick(make_method("deep-ensemble", members=2, stacked=True), 2, backbone=lambda: SmallBatchNormNet(10))
    assert isinstance(model.network, Ensemble) and not model.network.stackable
    counts = [member.bn1.num_batches_tracked.item() for member in model.network.members]  # type: ignore[union-attr,operator]
    assert counts == [6, 6]
    means = [member.bn1.running_mean for member in model.network.members]  # type: ignore[union-attr]
    assert not torch.equal(means[0], means[1])  # type: ignore[arg-type]
