"""Spearman correlation against scipy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from abnn.errors import InputError
from research.metrics import severity_correlation
from tests.metrics.samples import examples, generator


@examples(80)
@given(st.integers(0, 2**32 - 1), st.sampled_from((2, 3, 10, 300)), st.sampled_from((2, 4, 0)))
def test_severity_correlation_agrees_with_scipy(seed: int, size: int, levels: int) -> None:
    rng = generator(seed)
    severity = rng.integers(0, levels, size) / levels if levels else rng.random(size)
    scores = np.round(severity + rng.normal(size=size), 1)
    severity[:2], scores[:2] = (0.0, 0.75), (-9.0, rng.choice([9.0, -10.0]))
    assert severity_correlation(scores, severity) == pytest.approx(spearmanr(scores, severity).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "severity", "message"),
    [
        ([1.0, 1.0, 1.0], [0.0, 0.5, 1.0], "scores: got 3 equal values; .*undefined"),
        ([1.0, 2.0], [0.5, 0.5], "severity: got 2 equal values"),
        ([1.0], [0.5], "scores: got a single value"),
        ([1.0, 2.0], [0.5], "severity: got 1 values; accepted: 2, as many as scores"),
    ],
)
def test_undefined_correlations_are_refused(scores: list[float], severity: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        severity_correlation(scores, severity)
