"""Feature distances against a direct Mahalanobis computation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.errors import InputError, NotFittedError
from abnn.model.distance import MISFIT_QUANTILES, QUANTILES
from abnn.model.features import MAX_FEATURES
from abnn.networks.by_name import PaperResNet
from tests.bayes.test_gaussians import iterated_shrinkage
from tests.conftest import generator, mlp

CLASSES = 4


@pytest.fixture
def data() -> list[tuple[Tensor, Tensor]]:
    """Twenty batches of images whose level says their class."""
    x = torch.randn(400, 1, 12, 12, generator=generator(5))
    y = torch.randint(CLASSES, (400,), generator=generator(6))
    x = x + y[:, None, None, None]
    return list(zip(x.split(20), y.split(20)))


def block_features(model: nn.Module, x: Tensor) -> np.ndarray:
    """Mean and standard deviation over positions: input of the first block, then the output of each, in an attached model with
    the convolution by mean weights that stands beside it."""
    net = model.backbone if isinstance(model, Attached) else model
    assert isinstance(net, PaperResNet)
    parts = []
    with torch.no_grad():
        h = net.stem(x)
        values = [h]
        for index, block in enumerate(net.blocks):
            side = torch.zeros(())
            if isinstance(model, Attached):
                side = F.conv2d(h, model.layers[index].weight_mean, model.layers[index].bias_mean, padding=1)
            h = block(h) + side
            values.append(h)
    for value in values:
        flat = value.double().flatten(2).numpy()
        parts += [flat.mean(2), flat.std(2)]
    return np.concatenate(parts, axis=1)


def gaussians(train: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Class means, and the covariance that classes share, shrunk on standardised features."""
    means = np.stack([train[y == c].mean(0) for c in range(CLASSES)])
    centred = train - means[y]
    scale = centred.std(0)
    correlation = (centred / scale).T @ (centred / scale) / len(centred)
    rho = iterated_shrinkage(correlation, len(centred))
    return means, ((1 - rho) * correlation + rho * np.eye(len(scale))) * np.outer(scale, scale)


def squares(points: np.ndarray, means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """(f - m)^T C^-1 (f - m) for all means, [N, means]."""
    gaps = points[:, None, :] - means[None]
    return np.einsum("bcf,fg,bcg->bc", gaps, np.linalg.inv(covariance), gaps)


def reference_distance(train: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    """min over classes of sqrt((f - m)^T C^-1 (f - m) / dim)."""
    return np.sqrt(squares(test, *gaussians(train, y)).min(1) / train.shape[1])


def reference_misfit(train: np.ndarray, y: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Squared distance from each class less that from all data, whose covariance is C + B, over dim."""
    means, covariance = gaussians(train, y)
    shares = np.bincount(y, minlength=CLASSES) / len(y)
    centre = shares @ means
    between = (means - centre).T @ (shares[:, None] * (means - centre))
    return (squares(test, means, covariance) - squares(test, centre[None], covariance + between)) / train.shape[1]


def split(model: Attached, data: list[tuple[Tensor, Tensor]]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Features and labels that the moments see, and those that they do not: every fifth batch."""
    seen = [batch for index, batch in enumerate(data) if index % 5 != 4]
    held_out = [batch for index, batch in enumerate(data) if index % 5 == 4]
    train = np.concatenate([block_features(model, x) for x, _ in seen])
    labels = np.concatenate([y.numpy() for _, y in seen])
    unseen = np.concatenate([block_features(model, x) for x, _ in held_out])
    return train, labels, unseen, np.concatenate([y.numpy() for _, y in held_out])


def test_distance_is_mahalanobis(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    attached.distance.fit(data)
    train, labels, held_out, _ = split(attached, data)
    x = torch.cat([data[0][0], 5 * torch.randn(10, 1, 12, 12, generator=generator(1))])
    most = max(part.abs().max().item() for part, _ in data)
    scale = np.maximum(1, x.abs().amax((1, 2, 3)).numpy() / most)
    expected = scale * reference_distance(train, labels, block_features(attached, x))
    np.testing.assert_allclose(attached.distance(x).detach().numpy(), expected, rtol=2e-3)
    assert expected[20:].min() > 2 * expected[:20].max()  # far inputs are far
    expected = np.quantile(reference_distance(train, labels, held_out), QUANTILES)
    np.testing.assert_allclose(attached.distance.quantiles.numpy(), expected, rtol=2e-3)


def test_misfit_is_the_distance_from_a_class_relative_to_that_from_all_data(
    attached: Attached, data: list[tuple[Tensor, Tensor]]
) -> None:
    attached.distance.fit(data)
    train, labels, held_out, true = split(attached, data)
    x = torch.cat([x for x, _ in data[4::5]])
    with torch.no_grad():
        misfit = attached.distance.places(x, attached.distance.features(x))[:, 1:].numpy()
    expected = reference_misfit(train, labels, held_out)
    np.testing.assert_allclose(misfit, expected, rtol=5e-3, atol=5e-3 * np.abs(expected).max())
    own = np.quantile(expected[np.arange(len(true)), true], MISFIT_QUANTILES)
    np.testing.assert_allclose(attached.distance.misfit_quantiles.numpy(), own, rtol=5e-3, atol=1e-3)
    assert (expected.argmin(1) == true).mean() > 0.9  # the data says its class


def test_scale_is_seen_though_norms_remove_it(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    attached.distance.fit(data)
    x = data[0][0]
    far = [attached.distance(scale * x).min().item() for scale in (1, 10, 100, 1000)]
    assert far == sorted(far) and far[3] > 5 * far[2] > 25 * far[1] and far[3] > attached.distance.gate.high


def test_features_are_those_of_the_mean_weights(attached: Attached, images: Tensor) -> None:
    with torch.no_grad():
        features = attached.distance.features(images)
        np.testing.assert_allclose(features.numpy(), block_features(attached, images), rtol=1e-4, atol=1e-5)
        for layer in attached.layers:
            layer.weight_rho.add_(1.0)  # how wide the draws scatter does not matter
        attached.resample(3)
        assert torch.equal(attached.distance.features(images), features)
        attached.layers[-1].weight_mean.add_(1.0)
        moved = attached.distance.features(images)
    assert features.shape[1] == 4 * 2 * 8
    assert torch.equal(moved[:, :48], features[:, :48]) and not torch.isclose(moved[:, 48:], features[:, 48:]).any()


def check_every_fifth_input(model: Attached, batches: list[tuple[Tensor, Tensor]]) -> None:
    model.distance.fit(batches)
    features, y = block_features(model, torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]).numpy()
    out = np.arange(len(y)) % 5 == 4
    train = features[~out], y[~out]
    expected = np.quantile(reference_distance(*train, features[out]), QUANTILES)
    np.testing.assert_allclose(model.distance.quantiles.numpy(), expected, rtol=2e-3)
    own = reference_misfit(*train, features[out])[np.arange(out.sum()), y[out]]
    expected = np.quantile(own, MISFIT_QUANTILES)
    np.testing.assert_allclose(model.distance.misfit_quantiles.numpy(), expected, rtol=5e-3, atol=1e-3)
    shares = np.bincount(y[~out], minlength=CLASSES) / (~out).sum()
    np.testing.assert_allclose(model.distance.class_shares.numpy(), shares, rtol=1e-6)


@pytest.mark.parametrize("batches", [1, 4])
def test_of_few_batches_every_fifth_input_is_held_out(
    attached: Attached, data: list[tuple[Tensor, Tensor]], batches: int
) -> None:
    x, y = (torch.cat(parts) for parts in zip(*data))
    check_every_fifth_input(attached, list(zip(x.chunk(batches), y.chunk(batches))))


def test_of_batches_sorted_by_class_every_fifth_input_is_held_out(
    attached: Attached, data: list[tuple[Tensor, Tensor]]
) -> None:
    """The batch that would be kept out is all that there is of its class."""
    x, y = (torch.cat(parts) for parts in zip(*data))
    by_class = [(x[y == label], y[y == label]) for label in (0, 1, 2, 3)]
    first, labels = by_class[0]
    check_every_fifth_input(attached, [(first[:30], labels[:30]), (first[30:], labels[30:]), *by_class[1:]])


def test_the_only_input_of_a_class_is_not_held_out(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    x, y = data[0][0], torch.arange(20) % 3
    y[9] = 3  # the tenth input is one of every fifth
    attached.distance.fit([(x, y)])
    np.testing.assert_allclose(attached.distance.class_shares[3].item(), 1 / 17, rtol=1e-6)


def test_fewer_than_five_inputs_give_quantiles_of_what_there_is(
    attached: Attached, data: list[tuple[Tensor, Tensor]]
) -> None:
    x, y = data[0][0][:4], torch.tensor([0, 0, 1, 1])
    attached.distance.fit([(x, y)])
    expected = torch.quantile(attached.distance(x), torch.tensor(QUANTILES))
    torch.testing.assert_close(attached.distance.quantiles, expected)


def test_gate_goes_from_the_median_to_beyond_held_out_data(
    attached: Attached, data: list[tuple[Tensor, Tensor]]
) -> None:
    attached.distance.fit(data)
    gate = attached.distance.gate
    assert gate.low == attached.distance.quantiles[0].item() and gate.high > attached.distance.quantiles[-1].item()
    assert gate.fits < gate.misfits


def test_fitting_twice_forgets_the_first(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    attached.distance.fit(data)
    first = attached.distance(data[0][0])
    attached.distance.fit([(x + 3, y) for x, y in data])
    assert not torch.allclose(attached.distance(data[0][0]), first)
    attached.distance.fit(data)
    assert torch.equal(attached.distance(data[0][0]), first)


def test_classes_that_never_occur_attract_nothing(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    two = [(x[y < 2], y[y < 2]) for x, y in data]
    attached.distance.fit(two)
    near, far = attached.distance(two[0][0]), attached.distance(data[0][0][data[0][1] == 3])
    assert torch.isfinite(near).all() and near.max() < far.min()
    misfit = attached.distance.places(two[0][0], attached.distance.features(two[0][0]))[:, 1:]
    assert torch.isfinite(misfit).all() and misfit[:, :2].max() < misfit[:, 2:].min()  # and nothing fits to them
    white = attached.distance.class_means @ attached.distance.whitening.T
    assert (white[2:] - white[0]).norm(dim=1).min() > 1e3 * (white[1] - white[0]).norm()


def test_classes_in_held_out_batches_alone_leave_the_gate_as_it_is(
    attached: Attached, data: list[tuple[Tensor, Tensor]]
) -> None:
    kept_out = [index % 5 == 4 for index in range(len(data))]
    known = [(x[y < 3], y[y < 3]) for x, y in data]
    attached.distance.fit(known)
    expected = attached.distance.misfit_quantiles.clone()
    attached.distance.fit([each if out else few for each, few, out in zip(data, known, kept_out)])
    torch.testing.assert_close(attached.distance.misfit_quantiles, expected)


def test_places_are_never_computed_in_half_precision(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    attached.distance.fit(data)
    x = data[0][0]
    features = attached.distance.features(x)
    expected = attached.distance.places(x, features)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attached.distance.places(x, features), expected)


def test_empty_batches_have_no_say(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    attached.distance.fit(data)
    expected = attached.distance.quantiles.clone()
    attached.distance.fit([*data, (data[0][0][:0], data[0][1][:0])])
    assert torch.equal(attached.distance.quantiles, expected)


def test_constant_features_do_no_harm(small_net: Any, data: list[tuple[Tensor, Tensor]]) -> None:
    """Dead channels have no variance; distances stay finite, and ordinary inputs stay near."""
    with torch.no_grad():
        for block in small_net.blocks:
            block.conv2.weight[:3] = 0
        small_net.stem[0].weight[:3] = 0
    model = abnn.attach(small_net, data[0][0])
    model.distance.fit(data)
    distance = model.distance(data[4][0])
    assert torch.isfinite(distance).all() and distance.max() < 5


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_equal_inputs_are_at_one_place_in_any_batch(small_net: Any, value: float) -> None:
    """All features are rounding away from their means: alone an input is where it is among others; another one is far."""
    x = torch.full((64, 1, 12, 12), value)
    model = abnn.attach(small_net, x[:1])
    model.distance.fit([(x[:32], torch.arange(32) % 3)] * 5)
    gate = model.distance.gate
    distances = torch.stack([model.distance(x[:size])[0] for size in (1, 2, 7, 32, 64)])
    assert (distances - gate.low).abs().max() < 1e-4 * (gate.high - gate.low)
    assert model.distance(x[:1] + 0.5) > gate.high


def test_statistics_do_not_touch_the_network(attached: Attached, data: list[tuple[Tensor, Tensor]]) -> None:
    attached.train()
    before = {name: value.clone() for name, value in attached.net.state_dict().items()}
    attached.distance.fit(data)
    assert attached.training and all(module.training for module in attached.net.modules())
    assert all(torch.equal(before[name], value) for name, value in attached.net.state_dict().items())


def test_asking_before_fitting(attached: Attached, images: Tensor) -> None:
    with pytest.raises(NotFittedError, match=r"distance: no statistics.*abnn.fit"):
        attached.distance(images)


def test_nothing_to_fit(attached: Attached) -> None:
    with pytest.raises(InputError, match="batches: got .*accepted: "):
        attached.distance.fit([])
    assert not attached.distance.fitted


@pytest.mark.parametrize("label", [-1, CLASSES])
def test_labels_outside_the_classes(attached: Attached, images: Tensor, label: int) -> None:
    with pytest.raises(InputError, match=rf"y: got labels from {min(0, label)} to .*from 0 to {CLASSES - 1}"):
        attached.distance.fit([(images, torch.tensor([0, 0, label, 0, 0]))])
    assert not attached.distance.fitted


def test_wide_networks_are_sketched(data: list[tuple[Tensor, Tensor]]) -> None:
    net = PaperResNet(width=200, blocks=3, classes=CLASSES, stem="small")
    model = abnn.attach(net, data[0][0], draws=1)
    assert model.distance.sketch == 2 and model.distance.class_means.shape[1] == 4 * 200 <= MAX_FEATURES
    model.distance.fit(data[:10])
    assert model.distance(data[10][0]).shape == (20,)


def test_flat_features_are_taken_as_they_are(tabular: tuple[Tensor, Tensor]) -> None:
    x = tabular[0]
    net = mlp()
    model = abnn.attach(net, x[:1])
    with torch.no_grad():
        hidden = net[0](x)  # type: ignore[index]
        expected = torch.cat([x, hidden, net[2](torch.relu(hidden))], dim=1)  # type: ignore[index]
        torch.testing.assert_close(model.distance.features(x), expected)


def test_a_gate_from_few_inputs_has_a_width() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 4, generator=generator(0))
    model = abnn.attach(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), x[:1])
    model.distance.fit([(x, torch.arange(8) % 2)])
    gate = model.distance.gate
    assert gate.high >= gate.low * 1.1 and gate.misfits > gate.fits
    scores = model.predict(torch.lerp(x[:1], x[:1] * 1.01, torch.linspace(0, 1, 50)[:, None])).score
    assert scores.diff().abs().max() < 0.5  # no cliff between inputs that are nearly the same
