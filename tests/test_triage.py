"""Thresholds and verdicts: the conformal promise, the split, bad calibration sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import abnn
from abnn.errors import InputError
from abnn.predict import Plain, Prediction
from abnn.triage import Triage, best_split, conformal_quantile
from tests.test_fit import QUIET, attached, backbone, data, loader

X, Y = data()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_conformal_quantile_is_the_right_order_statistic(count: int, share: float, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=count)
    rank = math.ceil((count + 1) * (1 - share) - 1e-9)
    if rank > count:
        with pytest.raises(InputError, match="Hold out more data"):
            conformal_quantile(scores, share)
        assert conformal_quantile(scores, share, strict=False) == scores.max()
    else:
        assert (scores <= conformal_quantile(scores, share)).sum() == rank


def test_promise_holds_over_many_calibration_sets() -> None:
    rng = np.random.default_rng(0)
    for count, share in ((40, 0.05), (100, 0.1), (500, 0.05)):
        over = []
        for _ in range(3000):
            scores = rng.exponential(size=count + 20)
            over.append((scores[count:] > conformal_quantile(scores[:count], share)).mean())
        # Over random calibration sets the expected share is at most `share`; the mean of 3000 sets of 20 has a standard
        # error below sqrt(share / (3000 * 20)) plus the spread of the threshold, sqrt(share / count / 3000).
        error = math.sqrt(share / 60_000) + math.sqrt(share / count / 3000)
        assert np.mean(over) <= share + 4 * error
        assert np.mean(over) >= share - 1 / (count + 1) - 4 * error


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
)
def test_best_split_is_the_best_of_all(low: list[int], high: list[int]) -> None:
    one, two = np.array(low, float), np.array(high, float)

    def value(t: float) -> float:
        return (one <= t).mean() + (two > t).mean()

    best = max(value(t) for t in np.unique(np.concatenate([one, two])))
    assert value(best_split(one, two)) == pytest.approx(best)


def test_verdicts_follow_the_thresholds() -> None:
    triage = Triage(0.2, 0.6, 0.05, 0.01, "max-probability", 10, 0, 100)
    top = torch.tensor([0.9, 0.8, 0.5, 0.4, 0.3])
    prediction = Prediction(torch.stack([top, 1 - top], dim=1).sort(dim=1, descending=True).values[None])
    scores = prediction.score_by("max-probability")
    assert triage(prediction).verdict == [
        "accept" if s <= 0.2 else "notice" if s <= 0.6 else "reject" for s in scores.tolist()
    ]
    assert Triage.from_dict(triage.to_dict()) == triage


def test_calibrated_on_a_fitted_model() -> None:
    model = attached()
    abnn.fit(model, loader(), epochs=8, lr=1e-2, **QUIET)
    triage = Triage.calibrate(model, loader(shuffle=False))
    good = triage(model.predict(X)).verdict
    assert good.count("accept") >= math.floor(0.95 * len(X)) and triage.inputs == len(X)
    assert triage.score == "gated" and triage.notice <= triage.reject
    strange = triage(model.predict(torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(1)))).verdict
    assert strange.count("reject") > good.count("reject") / len(good) * 50


def test_plain_networks_can_be_calibrated_too() -> None:
    triage = Triage.calibrate(Plain(backbone(), X[:1]), loader())
    assert triage.score == "entropy"


def test_bad_calibration_sets() -> None:
    model = attached()
    with pytest.raises(InputError, match="at least 19 to promise 5.0%"):
        Triage.calibrate(model, [(X[:10], Y[:10])])
    with pytest.raises(InputError, match="without batches"):
        Triage.calibrate(model, [])
    with pytest.raises(InputError, match="between 0 and 1"):
        Triage.calibrate(model, loader(), noticed=1.5)
