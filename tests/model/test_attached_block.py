"""The draw without noise within a pass of the others: the same features, and every module called once."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.model.attached import Attached
from tests.conftest import SmallBatchNormNet, generator, randomise_attachments
from tests.model.test_attach import Encoder, LongSkip, image, small


def fitted(model: Attached, x: Tensor) -> Attached:
    y = torch.arange(len(x)) % model.classes
    randomise_attachments(model, 0.05)
    model.distance.fit(list(zip(x.split(4), y.split(4))))
    return model


def check(model: Attached, x: Tensor) -> None:
    """Distances are those of a pass of the mean weights, and samples those of a pass without these."""
    found = model.predict(x, draws=3, seed=1)
    assert found.distance is not None
    with torch.no_grad():
        torch.testing.assert_close(found.distance, model.distance(x), rtol=1e-3, atol=1e-4)
        model.resample(3, seed=1)
        torch.testing.assert_close(found.samples, model.draw_logits(x).softmax(2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["conv", "bottleneck", "chain", "replace"])
@pytest.mark.parametrize("last", [None, 1, 2])
def test_features_of_the_mean_weights_come_with_the_draws(kind: str, last: int | None) -> None:
    x = image(40, seed=2)
    model = fitted(abnn.attach(small(), x[:1], kind=kind, last=last), x)
    check(model, image(5, seed=3))


def test_other_networks() -> None:
    x = image(24, seed=1)
    check(fitted(abnn.attach(SmallBatchNormNet().eval(), x[:1]), x), x[:5])
    torch.manual_seed(0)
    tokens = torch.randn(24, 7, 5, generator=generator(1))
    model = fitted(abnn.attach(Encoder().eval(), tokens[:1]), tokens)
    check(model, tokens[:3])


class Around(nn.Module):
    """A skip connection around the last block, from behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).relu()
        return self.head(torch.cat([h, self.two(h).relu()], dim=1))


def test_networks_with_ways_around_attachments() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 4, generator=generator(1))
    model = fitted(abnn.attach(Around(), x[:1], at=["one", "two"]), x)
    assert not model.folds_at_input
    check(model, x[:5])
    with pytest.warns(abnn.errors.AbnnWarning):
        model = abnn.attach(LongSkip(), image(), at=["down", "up"])
    assert model.folds_at_input
    check(fitted(model, image(24, seed=4)), image(3, seed=5))


def calls(model: Attached, module: nn.Module, run: Any) -> int:
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1

    handle = module.register_forward_hook(hook)
    run()
    handle.remove()
    return count


def test_everything_runs_once_for_draws_and_distance() -> None:
    x = image(40, seed=2)
    network = small()
    model = fitted(abnn.attach(network, x[:1]), x)
    for module in (network.stem, network.blocks[0], network.blocks[2], network.head):
        assert calls(model, module, lambda: model.predict(x[:4], draws=5)) == 1
    late = fitted(abnn.attach(network, x[:1], last=1), x)
    shapes = []
    handle = network.blocks[2].register_forward_hook(lambda module, args, output: shapes.append(len(output)))
    late.predict(x[:4], draws=5)
    handle.remove()
    assert shapes == [4]  # what stands beside the first attachment runs once for all draws


def test_nothing_stays_behind(attached: Attached, images: Tensor) -> None:
    with attached.mean_network.noting() as notes, torch.no_grad():
        attached.draw_logits(images)
    assert [len(each) for each in notes.noted] == [5] * 4
    assert all(block.notes is None for block in attached.attached_blocks)
    with pytest.raises(RuntimeError), attached.mean_network.noting():
        attached.draw_logits(images[:, :, :0])
    assert all(block.notes is None for block in attached.attached_blocks)
    held = attached.layers[0].weight_noise
    with pytest.raises(RuntimeError):
        attached.distance.features(images[:, :, :0])
    assert attached.layers[0].weight_noise is held and attached.draws == 4


def test_a_chain_whose_pass_failed_can_be_copied() -> None:
    network, x = small(), image(2, seed=1)
    model = abnn.attach(network, x[:1], kind="chain")

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    handle = network.blocks[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        model(x)
    handle.remove()
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


def test_features_where_passes_share_their_weights(attached: Attached, images: Tensor) -> None:
    with torch.no_grad():
        features, logits = attached.distance.features(images), attached(images)
        with attached.keeping_weights():
            assert torch.equal(attached.distance.features(images), features)
            assert torch.equal(attached(images), logits)
            assert torch.equal(attached.distance.features(images), features)
            assert torch.equal(attached(images), logits)


def test_features_take_turns_with_predictions(attached: Attached, images: Tensor) -> None:
    with torch.no_grad():
        features, logits = attached.distance.features(images), attached(images)
    samples = attached.predict(images, draws=3).samples
    with ThreadPoolExecutor(4) as pool:
        read = [pool.submit(attached.distance.features, images) for _ in range(20)]
        predicted = [pool.submit(attached.predict, images, draws=3) for _ in range(20)]
    assert all(torch.equal(each.result(), features) for each in read)
    assert all(torch.equal(each.result().samples, samples) for each in predicted)
    with torch.no_grad():
        assert attached.draws == 4 and torch.equal(attached(images), logits)


def test_weights_are_made_once_where_passes_share_them(attached: Attached, images: Tensor) -> None:
    layer = attached.layers[0]
    with torch.no_grad(), attached.keeping_weights():
        assert layer.weights()[0] is layer.weights()[0]
        kept = attached.draw_logits(images)
    assert layer.made is None and layer.weights()[0] is not layer.weights()[0]
    with torch.no_grad():
        assert torch.equal(attached.draw_logits(images), kept)
