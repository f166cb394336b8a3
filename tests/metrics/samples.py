"""Random score sets for the tests: with many ties, without any, and with one side a thousand times larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

Pair: TypeAlias = tuple[np.ndarray, np.ndarray]
Triple: TypeAlias = tuple[np.ndarray, np.ndarray, np.ndarray]
SIZES = (1, 2, 3, 7, 20, 60, 1000)


def examples(number: int) -> Callable[[Any], Any]:
    """Settings of every property test: the same examples on every run, and no time limit for one of them."""
    return settings(max_examples=number, deadline=None, derandomize=True)


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def groups(draw: st.DrawFn, count: int, sizes: tuple[int, ...] = SIZES) -> tuple[np.ndarray, ...]:
    """``count`` groups of scores; later groups are shifted upwards, so that all metrics take values of all sizes."""
    rng = generator(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.sampled_from((1, 2, 3, 10, 0)))
    shift = draw(st.sampled_from((0.0, 1.0, -1.0, 5.0)))
    scale = draw(st.sampled_from((1.0, 1.0, 1e-12, 1e12)))
    result = []
    for number in range(count):
        size = draw(st.sampled_from(sizes))
        values = rng.integers(0, levels, size).astype(float) if levels else rng.normal(size=size)
        result.append((values + shift * number) * scale)
    return tuple(result)


@st.composite
def scored_predictions(draw: st.DrawFn, sizes: tuple[int, ...] = (2, 3, 7, 60, 1000), both: bool = True) -> Pair:
    """Scores with flags right/wrong; with ``both`` at least one of each."""
    (scores,) = draw(groups(1, sizes))
    rng = generator(draw(st.integers(0, 2**32 - 1)))
    correct = rng.random(len(scores)) < draw(st.sampled_from((0.0, 0.1, 0.5, 0.9, 1.0)))
    if both:
        first, second = rng.choice(len(scores), 2, replace=False)
        correct[first], correct[second] = True, False
    return scores, correct


@st.composite
def predicted_rows(draw: st.DrawFn, sizes: tuple[int, ...] = (1, 2, 7, 60, 1000)) -> Pair:
    """Class probabilities with labels, from nearly uniform to nearly one-hot rows."""
    rng = generator(draw(st.integers(0, 2**32 - 1)))
    size, classes = draw(st.sampled_from(sizes)), draw(st.sampled_from((2, 3, 10)))
    probs = rng.dirichlet(np.full(classes, draw(st.sampled_from((0.05, 1.0, 20.0)))), size)
    return probs, rng.integers(0, classes, size)
