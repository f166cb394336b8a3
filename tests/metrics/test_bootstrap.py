"""Bootstrap intervals: against theory, against scipy, and what is kept fixed under resampling."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from abnn import metrics as m
from abnn.errors import InputError

from .samples import generator


def mean(values: np.ndarray) -> float:
    return float(np.mean(values))


def test_interval_of_a_mean_is_the_normal_one() -> None:
    """Both ends within 5 % of the width, where Monte Carlo noise of a 2.5 % quantile of 4000 is about 1.5 %."""
    values = generator(0).normal(size=2000)
    interval = m.bootstrap(mean, values, resamples=4000)
    half = stats.norm.ppf(0.975) * values.std() / np.sqrt(len(values))
    assert interval.estimate == values.mean() and interval.level == 0.95
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_agrees_with_scipy_on_two_independent_groups() -> None:
    first, second = generator(0).normal(size=80), generator(1).normal(1, 1, size=40)
    ours = m.bootstrap(m.auroc, first, second, resamples=2000, level=0.9)
    theirs = stats.bootstrap(
        (first, second), m.auroc, n_resamples=2000, method="percentile", confidence_level=0.9, vectorized=False, rng=0
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.1 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.1 * width)


def test_interval_covers_the_truth_as_often_as_it_says() -> None:
    """AUROC of N(0,1) against N(1,1) is Phi(1/sqrt 2); 90 % intervals over 100 samples must hold it 90 +- 9 times."""
    truth, rng = stats.norm.cdf(1 / np.sqrt(2)), generator(0)
    hits = 0
    for _ in range(100):
        interval = m.bootstrap(m.auroc, rng.normal(size=60), rng.normal(1, 1, size=60), resamples=150, level=0.9)
        hits += interval.low <= truth <= interval.high
    assert 81 <= hits <= 99


def test_records_get_an_interval_per_number() -> None:
    rng = generator(0)
    sets = rng.normal(size=50), rng.normal(1, 1, 40), rng.normal(2, 1, 30)
    detection = m.bootstrap(m.detection, *sets[:2], resamples=50)
    assert set(detection) == set(m.detection(*sets[:2]).to_dict())
    tiers = m.bootstrap(m.tiers, *sets, resamples=50)
    assert set(tiers) == set(m.tiers(*sets).numbers()) and "clusters" not in tiers
    for name, interval in detection.items():
        assert interval.estimate == getattr(m.detection(*sets[:2]), name)
        assert interval.low <= interval.high
    alone = m.bootstrap(m.auroc, *sets[:2], resamples=50)
    assert detection["auroc"] == alone


def test_groups_keep_their_sizes_and_columns_stay_together() -> None:
    def check(first: np.ndarray, second: np.ndarray) -> float:
        assert first.shape == (5, 2) and second.shape == (3,)
        assert np.array_equal(first[:, 0] * 10, first[:, 1])
        return 0.0

    table = np.arange(5.0)[:, None] * [1, 10]
    assert m.bootstrap(check, table, np.arange(3), resamples=20).estimate == 0


def test_a_rare_kind_keeps_its_size_in_a_group_of_its_own() -> None:
    scores, correct = generator(0).normal(size=30), np.arange(30) < 28

    def misclassification(right: np.ndarray, wrong: np.ndarray) -> m.Result:
        assert (len(right), len(wrong)) == (28, 2) and set(wrong) <= set(scores[~correct])
        return m.detection(right, wrong)

    m.bootstrap(misclassification, scores[correct], scores[~correct], resamples=20)
    free = m.bootstrap(lambda rows: float(np.sum(rows[:, 1])), np.column_stack([scores, correct]), resamples=50)
    assert free.low < 28 < free.high


def test_same_seed_same_interval() -> None:
    sets = generator(0).normal(size=60), generator(1).normal(size=40)
    run = [m.bootstrap(m.detection, *sets, resamples=30, seed=seed) for seed in (1, 1, 2)]
    assert run[0] == run[1] != run[2]


def test_undefined_resamples_say_what_to_do() -> None:
    rows = np.column_stack([np.arange(6.0), np.array([True] * 5 + [False])])
    with pytest.raises(InputError, match="statistic: got a resample on which it is undefined .*a group of its own"):
        m.bootstrap(lambda rows: m.misclassification(rows[:, 0], rows[:, 1]), rows, resamples=200)


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ((), {}, "groups: got none"),
        (([],), {}, "group 1: got no rows"),
        ((3.0,), {}, "group 1: got no rows"),
        (([1.0],), {"resamples": 1}, "resamples: got 1"),
        (([1.0],), {"level": 95}, "level: got 95; .*0.95"),
        (([1.0],), {"seed": -1}, "seed: got -1"),
    ],
)
def test_bad_arguments(arrays: tuple, options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        m.bootstrap(mean, *arrays, **options)


def test_bad_statistic() -> None:
    with pytest.raises(InputError, match="statistic: got a str as its result"):
        m.bootstrap(lambda values: "high", [1.0])  # type: ignore[arg-type,return-value]
