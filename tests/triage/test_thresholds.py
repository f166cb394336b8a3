"""Where thresholds lie: the conformal promise, the split, the least cost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abnn.config import Costs
from abnn.errors import InputError
from abnn.triage.thresholds import (
    best_split,
    cheapest_thresholds,
    conformal_quantile,
    conformal_rank,
    least_count,
    lift,
)


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


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), st.floats(0.01, 0.5), st.floats(0.5, 0.99))
def test_rank_with_confidence_is_the_smallest_that_binomial_tails_allow(
    count: int, share: float, confidence: float
) -> None:
    """P[coverage of the k-th smallest of n >= 1 - share] = P[Bin(n, 1 - share) <= k - 1], summed here term by term."""
    terms = [math.comb(count, k) * (1 - share) ** k * share ** (count - k) for k in range(count + 1)]
    rank = conformal_rank(count, share, confidence)
    assert sum(terms[:rank]) >= confidence - 1e-9 and (rank == 1 or sum(terms[: rank - 1]) <= confidence + 1e-9)
    least = least_count(share, confidence)
    assert (1 - share) ** least <= 1 - confidence + 1e-9 and (1 - share) ** (least - 1) >= 1 - confidence - 1e-9


def test_promise_with_confidence_holds_for_most_calibration_sets() -> None:
    rng = np.random.default_rng(0)
    # The share of exponential inputs above t is known, exp(-t): no test set is needed.
    over = [math.exp(-conformal_quantile(rng.exponential(size=200), 0.1, confidence=0.9)) > 0.1 for _ in range(2000)]
    assert np.mean(over) <= 0.1 + 3 * math.sqrt(0.09 / 2000)
    plain = [math.exp(-conformal_quantile(rng.exponential(size=200), 0.1)) > 0.1 for _ in range(500)]
    assert np.mean(plain) > 0.3  # on average only: many single sets exceed it


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), min_size=2, max_size=12),
    st.lists(st.integers(0, 6), min_size=9, max_size=9),
    st.sampled_from([0.0, 0.3, 0.9]),
)
def test_cheapest_thresholds_are_the_best_of_all_pairs(
    inputs: list[tuple[int, int]], table: list[int], far: float
) -> None:
    scores, kinds = np.array([s for s, _ in inputs], np.float32), np.array([k for _, k in inputs])
    costs = Costs(tuple(table[:3]), tuple(table[3:6]), tuple(table[6:]), far)  # type: ignore[arg-type]
    if (kinds == 2).all() or (far > 0 and (kinds != 2).all()):
        with pytest.raises(InputError, match="some of both"):
            cheapest_thresholds(scores, kinds, costs)
        return
    is_far = kinds == 2
    weights = np.where(is_far, far / max(1, is_far.sum()), (1 - far) / (~is_far).sum())

    def cost(notice: float, reject: float) -> float:
        level = (scores > notice).astype(int) + (scores > reject)
        return float((weights * costs.table[level, kinds]).sum())

    limits = [-1.0, *np.unique(scores).tolist()]
    best = min(cost(low, high) for low in limits for high in limits if low <= high)
    notice, reject, found = cheapest_thresholds(scores, kinds, costs)
    assert notice <= reject and found == pytest.approx(best) and cost(notice, reject) == pytest.approx(best)


def test_costs_are_checked() -> None:
    for wrong in ({"accept": (1.0, 2.0)}, {"notice": (0.0, -1.0, 0.0)}, {"reject": "abc"}, {"far": 1.0}):
        with pytest.raises(InputError, match="costs of|far"):
            Costs(**wrong)  # type: ignore[arg-type]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_no_tied_score_is_above_its_lifted_quantile(values: int, scale: float, seed: int) -> None:
    """Scores off by up to half of the resolution: who is above the lifted quantile was above the exact one."""
    rng = np.random.default_rng(seed)
    exact = scale * rng.integers(0, values, 200).astype(np.float64)
    half = lift(0.0, exact) / 2
    rounded, again = (exact + rng.uniform(-half, half, 200) * 0.999 for _ in range(2))
    above = again > lift(conformal_quantile(rounded, 0.1), rounded)
    assert not (above & (exact <= conformal_quantile(exact, 0.1))).any()
