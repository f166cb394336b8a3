"""Mean and spread over seeds, against the standard library."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abnn import metrics as m

from .samples import examples


@examples(60)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_and_sample_std(values: list[float]) -> None:
    summary = m.over_seeds(values)
    assert summary.n == len(values)
    assert summary.mean == pytest.approx(statistics.fmean(values), abs=1e-8)
    assert summary.std == pytest.approx(statistics.stdev(values), abs=1e-8)


def test_a_single_run_has_no_std() -> None:
    assert m.over_seeds([0.5]) == m.SeedSummary(0.5, None, 1)
