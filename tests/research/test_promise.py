"""The promise for tied scores and batches of any size, and false alarms of single calibration sets: small versions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from abnn.triage import drift
from abnn.triage.drift import DriftMonitor
from abnn.triage.thresholds import LEARNT
from research import promise
from research.drift import peaks_of, peaks_without_drift
from research.promise import KINDS, check_split_scores, promise_table

SMALL = {**promise.CONFIG, "fitted": 150, "good": 100, "epochs": 1, "steps": 20}


@pytest.mark.parametrize("name", KINDS)
def test_the_promise_holds_in_batches_of_any_size(name: str) -> None:
    scores = promise.score_by_batch(KINDS[name], 0, SMALL, ("torch",))["torch"]
    alone, seven, many = (scores[size] for size in promise.BATCHES)
    # One ten-thousandth of a score of about one: what docs/triage.md states.
    assert max(np.abs(alone - many).max(), np.abs(seven - many).max()) < 1e-4
    for chosen in scores.values():
        for counted in scores.values():
            assert check_split_scores(chosen, counted, 0.05, 200, 0, LEARNT)["holds"]


def test_rounding_that_decides_is_found() -> None:
    """A quarter of equal inputs that rounding puts above the threshold break the promise; as calibration sees it, it holds."""
    exact = np.repeat([0.1, 0.9], [150, 50])
    assert not check_split_scores(exact, exact + 1e-3, 0.05, 50, 0)["holds"]
    assert check_split_scores(exact, exact + 1e-3, 0.05, 50, 0, rounding=1e-3)["holds"]


def test_the_table_shows_the_worst_pair() -> None:
    checks = [
        {"bound": share, "mean": mean, "standard_error": 0.001, "counted_by": runtime}
        for share in (0.01, 0.05)
        for runtime, worst in (("torch", 0.02), ("onnx", 0.03))
        for mean in (0.01, worst)
    ]
    differences = {"largest_difference_between_batches": 1e-6, "largest_difference_with_onnx": 2e-6, "resolution": 1e-5}
    table = promise_table({"kinds": {"some": {"different_scores": 3, **differences, "checks": checks}}})
    assert (
        "| 3 | 1.0e-06 | 2.0e-06 | 1.0e-05 | 2.00 ± 0.10 % | 2.00 ± 0.10 % | 3.00 ± 0.10 % | 3.00 ± 0.10 % |" in table
    )


def test_many_streams_at_once_are_many_monitors(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    references = [drift.split_reference(rng.random(size), seed=size) for size in (40, 60)]
    steps = rng.random((80, 2, 2, 3))
    peaks = peaks_of(references, steps)
    for which, reference in enumerate(references):
        for stream in range(3):
            monkeypatch.setattr(drift, "_uniform", lambda _, seen: steps[seen, 1, which, stream])  # noqa: B023
            monitor = DriftMonitor(*reference)
            monitor.update(steps[:, 0, which, stream])
            assert monitor.peak == pytest.approx(peaks[which, stream], abs=1e-9)


@pytest.mark.parametrize("size", [40, 100])
def test_nine_of_ten_calibration_sets_keep_the_rate_of_false_alarms(size: int) -> None:
    """The share of 200 sets that do has a standard error of at most sqrt(0.09 / 200) if it is 0.9: three of them are allowed."""
    alarm = 0.2
    peaks = peaks_without_drift(size, 200, 60, 200)
    limits = np.array([0.0, drift.margin_for(size - size // 2)]) - math.log(alarm)
    plain, widened = ((peaks >= limit).mean(1) for limit in limits)
    assert (widened <= alarm).mean() >= 0.9 - 3 * math.sqrt(0.09 / 200)
    assert (plain <= alarm).mean() < (widened <= alarm).mean() and widened.mean() <= alarm
