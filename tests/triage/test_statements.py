"""Stated probabilities come true, whatever a network does to them, and nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from abnn.errors import InputError
from abnn.metrics.calibration import calibration
from abnn.predict import Prediction
from abnn.triage import Triage
from abnn.triage.statements import (
    FLATTEST,
    SHARPEST,
    choose_scaling,
    choose_temperature,
    no_surer,
    rare_classes,
    rescale,
)


def honest(count: int, classes: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """ln p and labels that are drawn from p."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(classes, 0.3), count)
    labels = (probs.cumsum(1) > rng.random((count, 1))).argmax(1)
    return np.log(np.maximum(probs, 1e-300)), labels


@pytest.mark.parametrize("power", [0.3, 0.7, 1.0, 2.5])
def test_what_a_network_does_to_probabilities_is_undone(power: float) -> None:
    log_probs, labels = honest(4000)
    bent = power * log_probs - np.log(np.exp(power * log_probs).sum(1, keepdims=True))
    temperature = choose_temperature(bent, labels)
    assert temperature == pytest.approx(power, rel=0.06)
    before, after = (
        calibration(probs.numpy(), labels).ece
        for probs in (torch.from_numpy(bent).exp(), rescale(torch.from_numpy(bent).exp(), temperature))
    )
    assert after < 0.02 and after <= before + 0.005


def test_a_part_of_many_inputs_is_enough() -> None:
    log_probs, labels = honest(60_000)
    assert choose_temperature(0.5 * log_probs, labels) == pytest.approx(0.5, rel=0.05)
    assert choose_temperature(log_probs[:1], labels[:1]) > 0


def test_few_inputs_and_none_wrong_do_not_make_certainty() -> None:
    sure = np.log(np.full((20, 2), [0.8, 0.2]))
    labels = np.zeros(20, int)
    temperature = choose_temperature(sure, labels)
    assert SHARPEST < temperature < 1
    assert 0.9 < rescale(torch.tensor([0.8, 0.2]), temperature)[0] < 0.9999
    assert choose_temperature(sure, 1 - labels) > 3  # all wrong
    assert choose_temperature(np.log(np.full((9, 3), 1 / 3)), np.zeros(9, int)) == pytest.approx(1)  # nothing to learn


def test_the_best_of_several_valleys_is_found() -> None:
    logits = np.zeros((6, 5))
    logits[:, 0] = 0.1
    labels = np.array([1, 0, 0, 0, 0, 0])

    def loss(temperature: float) -> float:
        stated = logits / temperature - np.log(np.exp(logits / temperature).sum(1, keepdims=True))
        return -stated[np.arange(6), labels].sum() + np.log(temperature) ** 2 / 2

    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    everywhere = min(loss(each) for each in np.geomspace(SHARPEST, FLATTEST, 500))
    assert loss(choose_temperature(log_probs, labels)) <= everywhere < loss(0.457929) - 0.1  # where the other valley is


def test_a_probability_too_small_for_its_type_counts_as_the_smallest() -> None:
    logits = torch.tensor([[0.0, -110.0]] + [[0.0, -3.0]] * 199)
    labels = np.array([1] + [0] * 199)
    exact = logits.double().log_softmax(1).numpy()
    with np.errstate(divide="ignore"):
        rounded = np.log(logits.softmax(1).numpy())
    assert rounded[0, 1] == -np.inf
    assert choose_temperature(rounded, labels) == pytest.approx(choose_temperature(exact, labels), rel=1e-3)
    assert choose_temperature(rounded, labels) < 2  # and not the flattest there is


def test_classes_without_probability_keep_none() -> None:
    probs = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert torch.allclose(rescale(probs, 0.5), probs) and torch.allclose(rescale(probs, 7.0), probs)
    assert 0 < choose_temperature(probs.log().numpy(), np.array([2, 1])) <= FLATTEST


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_label_stays_where_two_classes_become_equal(dtype: torch.dtype) -> None:
    probs = torch.rand(20_000, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    probs[:, 0] = probs[:, 1] * (1 - torch.finfo(dtype).eps)  # the class before is smaller by about one step
    for temperature in (0.3, 3.7):
        stated = rescale(probs, temperature)
        plain = (probs.log() / temperature).softmax(-1)
        assert (plain.argmax(-1) != probs.argmax(-1)).any()  # what has to be mended
        assert torch.equal(stated.argmax(-1), probs.argmax(-1))
        assert torch.allclose(stated.float(), plain.float(), rtol=2 * torch.finfo(dtype).eps, atol=0)


def overfitted(count: int, seed: int, usual: float) -> tuple[np.ndarray, np.ndarray]:
    """ln p and labels of a network that is too sure of two classes and has learnt noise; ``usual``: the log-odds of the second."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(usual, 2.0, count)
    labels = (rng.random(count) < 1 / (1 + np.exp(-honest))).astype(int)
    told = 2 * honest + rng.normal(0, 4.0, count)
    return -np.logaddexp(0, np.stack([told, -told], axis=1)), labels


def test_a_rare_class_is_not_stated_too_often() -> None:
    log_probs, labels = overfitted(3000, 0, usual=-6)
    fresh, truth = overfitted(100_000, 1, usual=-6)
    probs, share = torch.from_numpy(fresh).exp(), truth.mean()
    assert share < 0.015
    temperature, offsets = choose_scaling(log_probs, labels)
    alone = rescale(probs, choose_temperature(log_probs, labels))
    stated = rescale(probs, temperature, offsets)
    assert offsets[0] == 0 and offsets[1] < 0
    assert alone[:, 1].mean() > 2 * share  # what has to be mended
    assert abs(stated[:, 1].mean() - share) < (alone[:, 1].mean() - share) / 3  # not 0, because labels stay
    assert calibration(stated.numpy(), truth).nll < calibration(alone.numpy(), truth).nll
    assert torch.equal(stated.argmax(1), probs.argmax(1)) and torch.allclose(
        stated.sum(1), torch.ones(len(stated)).double()
    )


def test_offsets_are_of_rare_classes_alone() -> None:
    log_probs, labels = overfitted(2000, 0, usual=0)
    assert choose_scaling(log_probs, labels) == (choose_temperature(log_probs, labels), ())
    few = np.arange(500) % 100  # five inputs of each class, and none of others, say nothing
    assert len(rare_classes(few, 200)) == 0
    assert rare_classes(np.repeat([0, 1, 2], [500, 480, 20]), 4).tolist() == [2, 3]


def test_offsets_belong_to_as_many_classes() -> None:
    triage = Triage(0.9999, 1.0, 0.1, 0.1, "entropy", 5, 0, 64, offsets=(0.0, -1.0))
    assert Triage.from_dict(triage.to_dict()) == triage
    with pytest.raises(InputError, match="prediction: got 3 classes; accepted: 2, as calibrated"):
        triage.probabilities(Prediction(torch.full((1, 4, 3), 1 / 3)))


def test_the_order_of_classes_and_the_verdicts_stay() -> None:
    samples = torch.rand(5, 64, 10, generator=torch.Generator().manual_seed(0)).softmax(-1)
    prediction = Prediction(samples)
    plain = Triage(0.9999, 1.0, 0.1, 0.1, "entropy", 5, 0, 64)  # all are accepted
    sharp = Triage(0.9999, 1.0, 0.1, 0.1, "entropy", 5, 0, 64, temperature=0.2)
    assert torch.allclose(plain.probabilities(prediction), prediction.probs)
    stated = sharp.probabilities(prediction)
    assert torch.equal(stated.argsort(1), prediction.probs.argsort(1))
    assert torch.allclose(stated.sum(1), torch.ones(64)) and (stated.amax(1) > prediction.probs.amax(1)).all()
    assert plain(prediction).verdict == sharp(prediction).verdict
    assert Triage.from_dict(sharp.to_dict()) == sharp
    older = sharp.to_dict()
    del older["temperature"]
    assert Triage.from_dict(older).temperature == 1
    with pytest.raises(InputError, match="temperature: got 0"):
        Triage(0.1, 0.2, 0.1, 0.1, "entropy", 5, 0, 64, temperature=0)


def network_and_attached(count: int = 400, classes: int = 5) -> Prediction:
    """A network that is sure of some inputs, with attachments that are surer or less sure, and a score of all kinds."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, count, classes, generator=generator) * torch.rand(2, count, 1, generator=generator) * 6
    return Prediction(logits.softmax(-1), torch.rand(count, generator=generator), default="combined")


@pytest.mark.parametrize("by_class", [(), tuple((0.1 + 0.1 * label, 0.9) for label in range(5))])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.0])
def test_what_is_not_accepted_is_never_stated_surer_than_by_the_network(
    temperature: float, by_class: tuple[tuple[float, float], ...]
) -> None:
    prediction = network_and_attached()
    triage = Triage(0.4, 0.8, 0.1, 0.1, "combined", 0, 0, 64, temperature=temperature, by_class=by_class)
    stated = triage.probabilities(prediction)
    accepted = torch.tensor([verdict == "accept" for verdict in triage(prediction).verdict])
    assert 50 < accepted.sum() < 350
    rescaled = rescale(prediction.probs, temperature)
    assert torch.equal(stated[accepted], rescaled[accepted])
    refused, network = stated[~accepted], prediction.samples[0, ~accepted]
    assert (refused.amax(1) <= network.amax(1) * (1 + 2e-7)).all()
    surer = rescaled[~accepted].amax(1) > network.amax(1)
    assert surer.any() and torch.equal(refused[~surer], rescaled[~accepted][~surer])
    assert torch.allclose(stated.sum(1), torch.ones(len(stated)))
    assert torch.equal(stated.argmax(1), prediction.label)


def test_the_label_stays_where_the_network_knows_nothing() -> None:
    stated = torch.tensor([[0.1, 0.2, 0.7], [0.0, 1.0, 0.0]])
    flat = no_surer(stated, torch.full((2, 3), 1 / 3))
    assert flat.argmax(1).tolist() == [2, 1] and torch.allclose(flat, torch.full((2, 3), 1 / 3))
    assert torch.equal(no_surer(stated, stated), stated)
