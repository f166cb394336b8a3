"""Scores against numpy formulas, and their bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from abnn.errors import InputError, NotFittedError
from abnn.predict import Prediction
from abnn.scores import SAMPLE_SCORES, SCORES, find_score, score
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
    assert set(SCORES) == {*SAMPLE_SCORES, "label-entropy", "combined", "failures", "energy", "distance"}
    assert {name for name, each in SCORES.items() if each.statistics} == {"combined", "failures", "energy", "distance"}


def test_scores_of_what_a_fit_has_learnt() -> None:
    values = torch.tensor([[0.5, 2.0], [1.0, -1.0], [3.0, 2.0], [0.0, 6.0]])
    parts = dict(zip(("energy", "odds", "distance at input", "distance at layer.0"), values))
    prediction = Prediction(samples(3, 2), torch.tensor([7.0, 8.0]), parts)
    assert prediction.score_by("combined").tolist() == [7.0, 8.0]
    assert prediction.score_by("failures").tolist() == [7.5, 7.5]  # half of the odds more
    assert prediction.score_by("energy").tolist() == [0.5, 2.0]
    assert prediction.score_by("distance").tolist() == [1.5, 4.0]  # the mean over places


@pytest.mark.parametrize("name", ["combined", "failures", "energy", "distance"])
def test_scores_that_need_a_fit_say_so(name: str) -> None:
    with pytest.raises(NotFittedError, match=f"score: '{name}' needs what abnn.fit.* learns.*entropy"):
        Prediction(samples(3, 2)).score_by(name)


def test_unknown_scores() -> None:
    for gone in ("gated", "misfit", "entropi"):
        with pytest.raises(InputError, match=f"score: got '{gone}'.*combined"):
            find_score(gone)
    with pytest.raises(InputError, match="name: got 'entropy'; accepted: a name that no other score has"):
        score("entropy")(lambda prediction: prediction.samples)
