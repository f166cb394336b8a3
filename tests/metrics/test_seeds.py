"""Summaries and the paired test over seeds, against the standard library, scipy and full enumeration."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abnn import metrics as m
from abnn.errors import InputError

from .samples import examples, generator


@examples(150)
@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20))
def test_mean_and_sample_std(values: list[float]) -> None:
    summary = m.over_seeds(values)
    assert summary.n == len(values)
    assert summary.mean == pytest.approx(statistics.fmean(values), abs=1e-8)
    assert summary.std == pytest.approx(statistics.stdev(values), abs=1e-8)


def test_a_single_run_has_no_std() -> None:
    assert m.over_seeds([0.5]) == m.SeedSummary(0.5, None, 1)


def test_records_are_summarised_by_number() -> None:
    runs = [m.detection(generator(seed).normal(size=30), generator(-seed + 9).normal(1, 1, 30)) for seed in range(3)]
    table = m.over_seeds(runs)
    assert set(table) == set(runs[0].to_dict())
    assert table["auroc"] == m.over_seeds([run.auroc for run in runs])


def test_records_of_different_kinds_are_refused() -> None:
    other = m.selective([0.0, 1.0], [True, False])
    for runs in ([m.detection([0.0], [1.0]), other], [other, 0.5]):
        with pytest.raises(InputError, match="runs: got records with different numbers"):
            m.over_seeds(runs)
