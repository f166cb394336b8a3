"""The paired test over seeds, against scipy and full enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import permutation_test

from abnn.errors import InputError
from research.metrics import paired_test
from tests.metrics.samples import examples, generator

# values as they appear in tables, so that many sign patterns tie
TABLE_VALUES = st.lists(st.integers(-4, 4).map(lambda k: k / 10), min_size=1, max_size=8)


@examples(60)
@given(TABLE_VALUES)
def test_p_value_is_the_share_of_all_sign_patterns(differences: list[float]) -> None:
    tenths = [round(value * 10) for value in differences]  # whole numbers: ties are exact
    patterns = list(itertools.product((1, -1), repeat=len(tenths)))
    sums = [abs(sum(sign * value for sign, value in zip(signs, tenths, strict=True))) for signs in patterns]
    expected = sum(value >= abs(sum(tenths)) for value in sums) / len(patterns)
    result = paired_test(np.array(differences) + 0.7, np.full(len(differences), 0.7))
    assert result.p_value == pytest.approx(expected, abs=1e-15)
    assert result.exact and result.n == len(differences)
    assert result.smallest_p == min(1.0, 2 / len(patterns))
    assert result.mean_difference == pytest.approx(np.mean(differences), abs=1e-12)


@pytest.mark.parametrize("n", [3, 8, 12])
def test_agrees_with_scipy(n: int) -> None:
    first, second = generator(n).normal(0.3, 1, n), generator(n + 1).normal(size=n)
    reference = permutation_test(
        (first, second), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=np.inf
    )
    assert paired_test(first, second).p_value == pytest.approx(reference.pvalue, abs=1e-12)


def test_many_seeds_are_sampled_close_to_the_exact_value() -> None:
    differences = generator(0).normal(0.3, 1, 17)
    signs = 1 - 2 * (np.arange(2**17)[:, None] >> np.arange(17) & 1)
    exact = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) * (1 - 1e-12))
    result = paired_test(differences, np.zeros(17), draws=25_000)
    assert not result.exact and result.smallest_p == 1 / 25_001
    assert result.p_value == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 25_000))
    assert paired_test(differences, np.zeros(17), draws=25_000) == result
    assert paired_test(np.ones(40), np.zeros(40), draws=100).p_value == 1 / 101


def test_five_seeds_never_reach_five_percent() -> None:
    result = paired_test([0.9] * 5, [0.1] * 5)
    assert result.p_value == result.smallest_p == 0.0625
    assert paired_test([0.5] * 5, [0.5] * 5).p_value == 1.0


@pytest.mark.parametrize(
    ("first", "second", "options", "message"),
    [
        ([1.0, 2.0], [1.0], {}, "second: got 1 values; accepted: 2, as many as first"),
        ([], [], {}, "first: got an empty array"),
        ([1.0], [float("nan")], {}, "second: got 1 of 1 values not finite"),
        ([1.0], [1.0], {"draws": 0}, "draws: got 0"),
        ([1.0], [1.0], {"seed": -1}, "seed: got -1"),
    ],
)
def test_bad_arguments(first: list[float], second: list[float], options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        paired_test(first, second, **options)
