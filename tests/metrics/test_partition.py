"""The optimal three clusters against trying all pairs of cuts in exact fractions."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abnn.metrics.tiers import three_clusters

from .samples import examples, generator, groups


def squared_error(cluster: list[Fraction]) -> Fraction:
    if not cluster:
        return Fraction(0)
    centre = sum(cluster, Fraction(0)) / len(cluster)
    return sum(((value - centre) ** 2 for value in cluster), Fraction(0))


def error_of_bounds(numbers: list[Fraction], first: Fraction, second: Fraction) -> Fraction:
    parts: tuple[list[Fraction], ...] = ([], [], [])
    for number in numbers:
        parts[(number > first) + (number > second)].append(number)
    return sum((squared_error(part) for part in parts), Fraction(0))


def check_optimal(numbers: np.ndarray) -> None:
    exact = [Fraction(float(number)) for number in numbers]
    best = min(error_of_bounds(exact, *cuts) for cuts in itertools.combinations_with_replacement(sorted(set(exact)), 2))
    first, second = three_clusters(numbers)
    found = error_of_bounds(exact, Fraction(first), Fraction(second))
    assert first in numbers and second in numbers
    assert found - best <= Fraction(1, 10**13) * squared_error(exact)


@examples(48)
@given(groups(1, (1, 2, 3, 4, 7, 20)))
def test_is_optimal(sample: tuple[np.ndarray]) -> None:
    check_optimal(sample[0])


@examples(32)
@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=12))
def test_is_optimal_for_any_floats(numbers: list[float]) -> None:
    check_optimal(np.array(numbers))


@pytest.mark.parametrize("size", [50, 64, 65, 300])
def test_every_pair_of_cuts_at_larger_sizes(size: int) -> None:
    """Sizes around powers of two, where the levels of the search change; errors by prefix sums."""
    numbers = np.sort(generator(size).exponential(size=size))
    sums, squares = (np.append(0, np.cumsum(numbers**power)) for power in (1, 2))

    def error(start: int, stop: int) -> float:
        return squares[stop] - squares[start] - (sums[stop] - sums[start]) ** 2 / (stop - start)

    pairs = itertools.combinations(range(1, size), 2)
    first, second = min(pairs, key=lambda cut: error(0, cut[0]) + error(cut[0], cut[1]) + error(cut[1], size))
    assert three_clusters(numbers) == (numbers[first - 1], numbers[second - 1])


def test_order_offset_and_scale_do_not_matter() -> None:
    numbers = generator(0).normal(size=500)
    first, second = three_clusters(numbers)
    assert three_clusters(numbers[::-1].copy()) == (first, second)
    assert three_clusters(numbers * 2.0**900) == (first * 2.0**900, second * 2.0**900)
    assert three_clusters(numbers * 2.0**-900) == (first * 2.0**-900, second * 2.0**-900)


def test_ties_between_partitions_and_few_values() -> None:
    assert three_clusters(np.array([3.0, 1.0, 0.0, 2.0])) == (0.0, 1.0)
    assert three_clusters(np.array([1.0, 1.0])) == (1.0, 1.0)
    assert three_clusters(np.array([2.0, 1.0, 2.0])) == (1.0, 2.0)


def test_a_hundred_thousand_numbers_come_close_to_the_closed_form() -> None:
    """The best three groups of a standard normal meet at -0.6120 and 0.6120 (Max, 1960)."""
    assert three_clusters(generator(0).normal(size=100_000)) == pytest.approx((-0.6120, 0.6120), abs=0.03)
