"""Width by search: as wide as held-out data allow, and no mean moves."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import abnn
from abnn.errors import InputError
from abnn.train.width import DRAWS, NARROWEST, WIDEST, widen
from tests.conftest import randomise_attachments
from tests.train.test_fit import attached, data

HELD = [data(60)]


def log_loss(model: abnn.Attached, draws: int) -> float:
    x, y = HELD[0]
    probs = model.predict(x, draws=draws, score="entropy").samples[1:].mean(0)
    return -probs[torch.arange(len(y)), y].log().mean().item()


def fitted() -> abnn.Attached:
    """Attachments that say something."""
    return randomise_attachments(attached(), 0.1)


def test_draws_predict_nearly_as_well_as_mean_weights() -> None:
    widths = []
    for tolerance in (0.001, 0.01, 0.1):
        model = fitted()
        widths.append(widen(model, HELD, tolerance))
        assert NARROWEST <= widths[-1] <= WIDEST
        assert log_loss(model, DRAWS) <= log_loss(model, 0) + tolerance + 1e-6
        for layer in model.layers:
            expected = widths[-1] * layer.weight_mean.square().mean().sqrt()
            torch.testing.assert_close(layer.weight_sigma, expected.expand_as(layer.weight_sigma), rtol=1e-3, atol=1e-7)
    assert widths == sorted(widths) and widths[0] < widths[-1]


def test_means_and_predictions_of_mean_weights_stay() -> None:
    model, x = fitted(), data(20)[0]
    before, means = model.predict(x).samples, [layer.weight_mean.clone() for layer in model.layers]
    narrow = model.predict(x, draws=5, score="entropy").samples[1:].std(0).mean()
    assert widen(model, HELD) == widen(model, HELD)  # which repeats
    assert torch.equal(model.predict(x).samples, before)
    assert all(torch.equal(layer.weight_mean, mean) for layer, mean in zip(model.layers, means))
    assert model.predict(x, draws=5, score="entropy").samples[1:].std(0).mean() > narrow


@pytest.mark.parametrize("hold", [0, 3])
def test_held_draws_are_those_of_the_new_width(hold: int) -> None:
    model, x = fitted(), data(20)[0]
    model.resample(hold, seed=7)
    widen(model, HELD)
    assert model.mean_weights is (hold == 0)
    output = model(x)
    model.resample(hold, seed=7)
    torch.testing.assert_close(model(x), output)


def test_attachments_that_say_nothing_yet() -> None:
    model = attached()
    assert 0 < widen(model, HELD) <= WIDEST
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("draws", [0, 4])
def test_thresholds_of_draws_are_forgotten(draws: int) -> None:
    model = fitted()
    config = abnn.TriageConfig(draws=draws)
    x, y = data(200)
    model.score = "entropy"
    abnn.calibrate(model, [(x, y)], config=config)
    assert model.triage is not None
    widen(model, HELD)
    assert (model.triage is None) is (draws > 0)


@pytest.mark.parametrize(
    ("options", "batches", "message"),
    [
        ({"preset": "authors"}, HELD, "kind 'chain'; accepted: bounded ones"),
        ({"task": "multilabel"}, HELD, "model: got one for multilabel; accepted: one for classification"),
        ({}, [], "loader: got a loader without batches"),
        ({}, [(Tensor([1.0]), 0)], "x: got|loader: got"),
    ],
)
def test_refused(options: dict[str, Any], batches: Any, message: str) -> None:
    model = attached(**options)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(InputError, match=message):
        widen(model, batches)
    assert all(torch.equal(left, right) for left, right in zip(before, model.parameters()))


def test_a_network_without_attachments_is_named() -> None:
    with pytest.raises(InputError, match="model: got Linear; accepted: what abnn.attach.*Attach first"):
        widen(torch.nn.Linear(2, 2), [])  # type: ignore[arg-type]
