"""The posterior of linear attachments: equal to numpy, about 1 on the data, and without bound away from them."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from abnn.bayes.closed_form import LARGEST, ClosedForm
from abnn.bayes.gaussians import LEAST, MOST, Moments
from tests.conftest import generator

WIDTHS = [4, 9, 2]


def features(count: int = 400, seed: int = 0) -> list[Tensor]:
    """Correlated features of several sizes around means that are not zero."""
    places = []
    for number, width in enumerate(WIDTHS):
        mixing = torch.randn(width, width, generator=generator(10 + number))
        values = torch.randn(count, width, generator=generator(seed + 100 * number)) @ mixing
        places.append(10.0**number * (values + 3))
    return places


class Variances(ClosedForm):
    """What the closed form says without its witness."""

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        return super().forward(features)[:, : len(self.widths)]


def fitted(data: list[Tensor], part: int = 64) -> ClosedForm:
    form = Variances([each.shape[1] for each in data])
    moments = [Moments(1, each.shape[1]) for each in data]
    for each, values in zip(moments, data):
        for rows in values.split(part):
            each.add(rows.double(), torch.zeros(len(rows), dtype=torch.int64))
    form.set(moments)
    return form


def by_hand(data: np.ndarray, x: np.ndarray) -> np.ndarray:
    """phi' ((1 - l) C + l I)^-1 phi / d with standardised features."""
    mean, spread = data.mean(0), data.std(0)
    phi = (x - mean) / spread
    correlation = np.cov((data - mean) / spread, rowvar=False, bias=True)
    share = min(0.9, max(0.05, data.shape[1] / len(data)))
    posterior = np.linalg.inv((1 - share) * correlation + share * np.eye(data.shape[1]))
    return np.einsum("bi,ij,bj->b", phi, posterior, phi) / data.shape[1]


@pytest.mark.parametrize("count", [3, 12, 400])
def test_equals_numpy(count: int) -> None:
    data, x = features(count), features(20, seed=5)
    found = fitted(data)(x)
    assert found.shape == (20, len(WIDTHS)) and found.dtype == torch.float32
    for place, (known, new) in enumerate(zip(data, x)):
        expected = by_hand(known.double().numpy(), new.double().numpy())
        np.testing.assert_allclose(found[:, place].double().exp().numpy(), expected, rtol=1e-3)


def test_shrinkage_follows_how_many_inputs_there_are() -> None:
    assert (LEAST, MOST) == (0.05, 0.9)
    few, many = fitted(features(3)), fitted(features(4000))
    far = [each + 1000 for each in features(5, seed=3)]
    assert few(far).isfinite().all() and many(far).isfinite().all()


def test_is_about_one_on_the_data() -> None:
    """The mean of v is tr(C S) / d: between 1 - l and 1 / (1 - l)."""
    data = features()
    form = fitted(data)
    for inputs in (data, features(seed=9)):
        mean = form(inputs).exp().mean(0)
        assert ((mean > 0.8) & (mean < 1.2)).all()
        assert (form(inputs).median(0).values.abs() < 1).all()


@given(st.integers(0, 99), st.floats(0, 3))
def test_grows_as_the_square_along_every_direction(seed: int, start: float) -> None:
    """From the mean of the data: v(t phi) = t^2 v(phi), strictly more from t = 1 to 1e6."""
    data = features()
    form = fitted(data)
    means = [each.mean(0, keepdim=True) for each in data]
    spreads = [each.std(0, keepdim=True) for each in data]
    steps = [torch.randn(1, width, generator=generator(seed)) * spread for width, spread in zip(WIDTHS, spreads)]
    t = torch.logspace(start / 10, 6, 40)[:, None]
    found = form([mean + t * step for mean, step in zip(means, steps)])
    assert (found.diff(dim=0) > 0).all()
    first = form([mean + step for mean, step in zip(means, steps)])
    torch.testing.assert_close(found, first + 2 * t.log(), rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("direction", range(9))
def test_also_along_what_the_data_never_do(direction: int) -> None:
    """Features that are flat, or sums of others: no direction has a variance of zero."""
    base = torch.randn(200, 4, generator=generator(1))
    data = torch.cat([base, base[:, :2] + base[:, 2:], torch.full((200, 3), 2.0)], dim=1)
    form = fitted([data])
    step = torch.zeros(1, 9)
    step[0, direction] = 1.0
    t = torch.logspace(0, 6, 20)[:, None]
    found = form([data.mean(0, keepdim=True) + t * step])[:, 0]
    assert (found.diff() > 0).all()
    torch.testing.assert_close(found[-1] - found[0], torch.tensor(2 * math.log(1e6)), rtol=1e-2, atol=0)


def test_is_finite_for_everything() -> None:
    form = fitted(features())
    values = [0.0, 1e6, 1e19, -1e30, 3e38, math.inf, -math.inf, math.nan]
    found = form([torch.tensor(values)[:, None].expand(-1, width) for width in WIDTHS])
    assert found.isfinite().all() and (found.abs() <= LARGEST).all()
    assert (found[1:4].diff(dim=0) >= 0).all() and (found[-5:] == LARGEST).all()
    mixed = torch.tensor([[3e38, -3e38, 3e38, -3e38]])
    assert form([mixed, torch.zeros(1, 9), torch.zeros(1, 2)])[0, 0] == LARGEST
    middle = form([form.state_dict()[f"mean{place}"][None] for place in range(len(WIDTHS))])
    assert middle.isfinite().all() and (middle < -10).all()  # nothing is less unusual than the mean


def test_half_precision_around_it_changes_nothing() -> None:
    form, x = fitted(features()), features(5, seed=2)
    expected = form(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(form(x), expected)
    rounded = form([each.bfloat16() for each in x])
    assert rounded.dtype == torch.float32 and torch.allclose(rounded, expected, atol=0.5)


def test_how_data_come_in_does_not_matter() -> None:
    data, x = features(), features(5, seed=2)
    expected = fitted(data)(x)
    for part in (1, 7, 400):
        torch.testing.assert_close(fitted(data, part)(x), expected, rtol=1e-4, atol=1e-4)
    halves = [(Moments(1, width), Moments(1, width)) for width in WIDTHS]
    for (one, two), values in zip(halves, data):
        one.add(values[:150].double(), torch.zeros(150, dtype=torch.int64))
        two.add(values[150:].double(), torch.zeros(250, dtype=torch.int64))
        one.join(two)
    form = Variances(WIDTHS)
    form.set([one for one, _ in halves])
    torch.testing.assert_close(form(x), expected, rtol=1e-4, atol=1e-4)


def test_units_of_features_do_not_matter() -> None:
    data, x = features(), features(5, seed=2)
    scaled = [each * 1000 - 5 for each in data]
    torch.testing.assert_close(fitted(scaled)([each * 1000 - 5 for each in x]), fitted(data)(x), rtol=1e-3, atol=1e-3)


def test_state_and_copies() -> None:
    form, x = fitted(features()), features(5, seed=2)
    assert bool(form.fitted) and not bool(ClosedForm(WIDTHS).fitted)
    other = Variances(WIDTHS)
    other.load_state_dict(form.state_dict())
    twin = copy.deepcopy(form)
    assert torch.equal(other(x), form(x)) and torch.equal(twin(x), form(x)) and bool(other.fitted)
    assert not any(True for _ in form.parameters())  # nothing that an optimiser could change


# -- classes -----------------------------------------------------------------------------------------------------------


def told_apart(data: list[Tensor], labels: Tensor, classes: int) -> ClosedForm:
    form = ClosedForm([each.shape[1] for each in data], classes)
    moments = [Moments(classes, each.shape[1]) for each in data]
    for each, values in zip(moments, data):
        each.add(values.double(), labels)
    form.set(moments)
    return form


def relative_by_hand(data: np.ndarray, labels: np.ndarray, x: np.ndarray, label: int) -> np.ndarray:
    means = np.stack([data[labels == each].mean(0) for each in range(labels.max() + 1)])
    inside = data - means[labels]
    spread = inside.std(0)
    share = min(0.9, max(0.05, data.shape[1] / len(data)))
    inverse = np.linalg.inv(
        (1 - share) * np.cov(inside / spread, rowvar=False, bias=True) + share * np.eye(len(spread))
    )
    phi = (x - means[label]) / spread
    return np.einsum("bi,ij,bj->b", phi, inverse, phi) / len(spread) - by_hand(data, x)


def test_classes_equal_numpy() -> None:
    labels = torch.arange(400) % 3
    data = [each + 2 * each.std(0) * labels[:, None] for each in features()]
    x = features(20, seed=5)
    found = told_apart(data, labels, 3)(x)
    torch.testing.assert_close(found[:, :3], fitted(data)(x))
    relative = found[:, 5:].unflatten(1, (3, 3))
    for place, (known, new) in enumerate(zip(data, x)):
        for label in range(3):
            expected = relative_by_hand(known.double().numpy(), labels.numpy(), new.double().numpy(), label)
            np.testing.assert_allclose(relative[:, place, label].numpy(), expected, rtol=2e-3, atol=2e-3)


def test_few_inputs_say_nothing_about_classes_and_many_classes_are_not_told_apart() -> None:
    data, labels = features(59), torch.arange(59) % 3
    found = told_apart(data, labels, 3)(data)
    torch.testing.assert_close(found[:, :3], fitted(data)(data))
    assert (found[:, 3:] == 0).all()
    assert ClosedForm(WIDTHS, 201).classes == 0


def test_a_class_without_inputs_attracts_nothing() -> None:
    data, labels = features(), torch.arange(400) % 2
    relative = told_apart(data, labels, 3)(data)[:, 5:].unflatten(1, (3, 3))
    assert (relative[:, :, 2] > 1e4).all() and (relative[:, :, :2] < 1e3).all()


@pytest.mark.parametrize("size", [1e10, 1e25, 1e37, math.inf, math.nan])
def test_classes_far_away_are_finite(size: float) -> None:
    data, labels = features(), torch.arange(400) % 2
    assert told_apart(data, labels, 2)([size * each for each in data]).isfinite().all()


def test_classes_are_saved_as_they_are() -> None:
    data, labels = features(), torch.arange(400) % 2
    form, other = told_apart(data, labels, 2), ClosedForm(WIDTHS, 2)
    other.load_state_dict(form.state_dict())
    assert torch.equal(other(data), form(data)) and bool(other.told)
