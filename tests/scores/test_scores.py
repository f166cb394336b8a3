"""Scores against numpy formulas, and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from abnn.model.distance import Gate
from abnn.scores import SAMPLE_SCORES, SCORES, gated, outside
from tests.conftest import generator

NAMES = sorted(SAMPLE_SCORES)


def samples(draws: int = 7, batch: int = 5, classes: int = 4, scale: float = 3.0, seed: int = 0) -> Tensor:
    z = scale * torch.randn(draws, batch, classes, dtype=torch.float64, generator=generator(seed))
    return z.softmax(2)


def by_hand(name: str, probs: np.ndarray) -> np.ndarray:
    """Loops over inputs, draws and classes, with the formulas as they stand in the literature."""
    draws, batch, classes = probs.shape
    result = np.zeros(batch)
    for b in range(batch):
        mean = [sum(probs[s, b, k] for s in range(draws)) / draws for k in range(classes)]
        total = -sum(p * math.log(p) for p in mean if p > 0)
        each = [-sum(p * math.log(p) for p in probs[s, b] if p > 0) for s in range(draws)]
        expected = sum(each) / draws
        result[b] = {
            "max-probability": 1 - max(mean),
            "margin": 1 - (max(mean) - sorted(mean)[-2]),
            "entropy": total / math.log(classes),
            "expected-entropy": expected / math.log(classes),
            "mutual-information": (total - expected) / math.log(classes),
            "variance": sum(np.var(probs[:, b, k]) for k in range(classes)),
        }[name]
    return result


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_their_formulas(name: str) -> None:
    probs = samples()
    np.testing.assert_allclose(SAMPLE_SCORES[name](probs).numpy(), by_hand(name, probs.numpy()), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(
    draws=st.integers(1, 6),
    classes=st.integers(2, 7),
    scale=st.floats(0, 200),
    seed=st.integers(0, 99),
    single=st.booleans(),
)
def test_bounds(name: str, draws: int, classes: int, scale: float, seed: int, single: bool) -> None:
    probs = samples(draws, 4, classes, scale, seed).to(torch.float32 if single else torch.float64)
    score = SAMPLE_SCORES[name](probs)
    assert score.shape == (4,) and torch.isfinite(score).all()
    highest = {"max-probability": 1 - 1 / classes}.get(name, 1.0)
    rounding = 1e-5 if single else 1e-12
    assert (score >= -rounding).all() and (score <= highest + rounding).all()
    if name in ("mutual-information", "variance"):
        assert (score >= 0).all()
        if draws == 1:
            assert score.max() < rounding


def test_extremes() -> None:
    certain = torch.eye(3, dtype=torch.float64)[None].repeat(4, 1, 1)
    uniform = torch.full((4, 3, 3), 1 / 3, dtype=torch.float64)
    split = torch.eye(2, dtype=torch.float64)[:, None]  # two draws, certain of different classes
    for name in NAMES:
        assert SAMPLE_SCORES[name](certain).abs().max() < 1e-12
    for name in ("entropy", "margin"):
        assert SAMPLE_SCORES[name](uniform).tolist() == pytest.approx([1, 1, 1])
    assert SAMPLE_SCORES["mutual-information"](uniform).abs().max() < 1e-12
    assert SAMPLE_SCORES["mutual-information"](split).item() == pytest.approx(1)
    assert SAMPLE_SCORES["expected-entropy"](split).item() == pytest.approx(0)
    assert SAMPLE_SCORES["variance"](split).item() == pytest.approx(0.5)


def test_every_score_has_a_name() -> None:
    assert set(SCORES) == {*SAMPLE_SCORES, "distance", "gated"}


GATE = Gate(low=1.0, high=2.0, fits=0.1, misfits=0.3)


def test_gated_counts_margin_and_misfit_inside_distance_outside_and_not_beyond() -> None:
    entropy = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])
    distance = torch.tensor([0.0, 1.0, 1.25, 2.0, 19.0])
    misfit = torch.tensor([-9.0, 0.1, 0.2, 0.3, 9.0])
    margin = torch.tensor([0.5, 0.4, 0.9, 0.2, 0.1])
    score = gated(margin, entropy, distance, misfit, GATE)
    unsure = torch.tensor([0.5, 0.4, 0.9 - 0.6 / 64, 0.4, 0.5])  # the margin inside, the entropy outside
    torch.testing.assert_close(score, unsure + torch.tensor([-0.4, 0.0, 0.15 + 2 / 64, 2.4, 2.4]))
    torch.testing.assert_close(outside(distance, GATE), torch.tensor([0.0, 0.0, 1 / 64, 1.0, 1.0]))


@given(st.lists(st.floats(0, 10, width=32), min_size=2, max_size=8))
def test_gated_grows_with_distance_and_misfit(values: list[float]) -> None:
    ordered, none, gate = torch.tensor(sorted(values)), torch.zeros(len(values)), Gate(2.0, 5.0, 2.0, 5.0)
    by_distance, by_misfit = gated(none, none, ordered, none, gate), gated(none, none, none, ordered, gate)
    assert (by_distance.diff() >= 0).all() and (by_misfit.diff() >= 0).all()
    assert by_distance.min() >= -0.4 and gated(none, none, ordered, ordered, gate).max() <= 2.4 + 1e-6
    assert (gated(none + 1, none, ordered, none, gate).diff() >= 0).all()  # also where the margin gives way to less


def test_what_is_farther_than_any_picture_is_above_everything_else() -> None:
    distance = torch.tensor([20.0, 200.0, 20_000.0])  # 10, 100 and 10,000 times the gate's upper end
    score = gated(torch.zeros(3), torch.zeros(3), distance, torch.full((3,), -9.0), GATE)
    torch.testing.assert_close(score, 2.0 + torch.tensor([0.0, 1.0, 3.0]))
    assert score[-1] > gated(torch.ones(1), torch.ones(1), torch.tensor([19.0]), torch.tensor([9.0]), GATE)


def test_outside_for_certain_is_above_every_doubt_and_misfit_within() -> None:
    sure = gated(torch.zeros(1), torch.zeros(1), torch.tensor([2.0]), torch.tensor([-9.0]), GATE)
    unsure = gated(torch.ones(1), torch.ones(1), torch.tensor([1.25]), torch.tensor([9.0]), GATE)
    assert sure > unsure


def test_gated_with_an_empty_gate() -> None:
    values, gate = torch.tensor([0.5, 2.0]), Gate(1.0, 1.0, 1.0, 1.0)
    torch.testing.assert_close(gated(torch.zeros(2), torch.zeros(2), values, values, gate), torch.tensor([-0.4, 2.4]))
