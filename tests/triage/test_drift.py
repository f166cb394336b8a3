"""The drift monitor: p-values, fair bets, false alarms over all time, quick alarms where there is drift, saved state."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from abnn.errors import FileFormatError, InputError
from abnn.triage import drift
from abnn.triage.drift import LEAST_SCORES, DriftMonitor, merge, split_reference


def test_reference_counts_the_half_that_the_edges_do_not_come_from() -> None:
    scores = np.random.default_rng(0).normal(size=301).astype(np.float32)
    edges, counts = split_reference(scores, seed=3)
    order = np.random.default_rng(3).permutation(301)
    first, second = scores[order[:150]], scores[order[150:]]
    assert set(edges) <= set(first.tolist()) and edges[-1] == first.max()
    assert sum(counts) == 151
    for place, count in enumerate(counts):
        low = -math.inf if place == 0 else edges[place - 1]
        high = math.inf if place == len(edges) else edges[place]
        assert count == sum(low < score <= high for score in second)


def test_p_values_are_ranks_among_everything_seen() -> None:
    rng = np.random.default_rng(1)
    calibration, stream = rng.normal(size=80), rng.normal(size=50)
    edges, counts = split_reference(calibration, seed=0)
    monitor = DriftMonitor(edges, counts, seed=5)
    bag = [place for place, count in enumerate(counts) for _ in range(count)]
    for number, score in enumerate(stream):
        mine = sum(edge < score for edge in edges)
        bag.append(mine)
        tie = drift._uniform(5, number)
        expected = (sum(b > mine for b in bag) + tie * sum(b == mine for b in bag)) / len(bag)
        monitor_p = monitor._p_values(np.array([score]))[0]
        monitor.seen += 1
        assert monitor_p == pytest.approx(expected, abs=1e-12)


def test_bets_are_fair() -> None:
    """Each multiplies wealth by 1 on average over a uniform p, and the tie-breaking numbers are uniform."""
    wins, losses = np.exp(drift._WIN), np.exp(drift._LOSE)
    assert np.allclose(drift._SIZE * wins + (1 - drift._SIZE) * losses, 1)
    numbers = np.sort([drift._uniform(0, n) for n in range(2000)])
    distance = np.abs(numbers - np.arange(1, 2001) / 2000).max()
    assert distance < 1.95 / math.sqrt(2000)  # Kolmogorov-Smirnov at 0.1 %


def test_wealth_is_never_below_what_is_kept_back() -> None:
    monitor = DriftMonitor.from_scores(np.random.default_rng(0).normal(size=200))
    monitor.update(np.random.default_rng(1).normal(size=500))
    assert monitor.log_wealth >= -math.log(501) and monitor.seen == 500


@pytest.mark.parametrize(("count", "length"), [(40, 200), (200, 400)])
def test_false_alarms_over_the_whole_stream_stay_below_the_rate(count: int, length: int) -> None:
    rng = np.random.default_rng(count)
    runs, rate = 80, 0.2
    alarms = sum(
        DriftMonitor.from_scores(rng.exponential(size=count), rate, seed).update(rng.exponential(size=length))
        for seed in range(runs)
    )
    assert alarms / runs <= rate + 3 * math.sqrt(rate * (1 - rate) / runs)


def test_discrete_scores_are_no_drift() -> None:
    rng = np.random.default_rng(0)
    alarms = sum(
        DriftMonitor.from_scores(rng.integers(0, 4, 100), 0.2, seed).update(rng.integers(0, 4, 200))
        for seed in range(60)
    )
    assert alarms / 60 <= 0.2 + 3 * math.sqrt(0.2 * 0.8 / 60)


@pytest.mark.parametrize(("quiet", "side"), [(0, 6.0), (400, 6.0), (0, -6.0)])
def test_a_fifth_of_strange_inputs_is_noticed_soon(quiet: int, side: float) -> None:
    rng = np.random.default_rng(0)
    delays = []
    for seed in range(9):
        monitor = DriftMonitor.from_scores(rng.normal(size=300), 0.01, seed)
        assert not monitor.update(rng.normal(size=quiet))
        stream = rng.normal(size=300) + side * (rng.random(300) < 0.2)
        assert monitor.update(stream) and monitor.p_value <= 0.01
        assert monitor.direction == ("higher" if side > 0 else "lower")
        assert monitor.alarmed_at is not None
        delays.append(monitor.alarmed_at - quiet)
    assert np.median(delays) <= 60


def test_state_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    calibration, stream = rng.normal(size=100), rng.normal(0.7, size=120)
    whole, part = (DriftMonitor.from_scores(calibration, 0.05, 7) for _ in range(2))
    whole.update(stream)
    DriftMonitor.from_dict(json.loads(json.dumps(part.to_dict()))).to_dict()  # also before the first score
    for piece in np.split(stream, [1, 40]):
        part.save(tmp_path / "drift.json")
        part = DriftMonitor.load(tmp_path / "drift.json")
        part.update(piece)
    assert part.to_dict() == whole.to_dict()
    assert part.update(0.0) == part.alarmed
    part.reset()
    assert part.to_dict() == DriftMonitor.from_scores(calibration, 0.05, 7).to_dict()


def test_an_infinite_score_counts_as_above_all_others() -> None:
    calibration = np.linspace(0, 1, 100)
    one, two = (DriftMonitor.from_scores(calibration) for _ in range(2))
    one.update([math.inf] * 20)
    two.update([1e9] * 20)
    assert one.to_dict() == two.to_dict() and one.alarmed and one.direction == "higher"


def test_errors() -> None:
    with pytest.raises(InputError, match=f"at least {LEAST_SCORES}"):
        DriftMonitor.from_scores(np.zeros(10))
    with pytest.raises(InputError, match="1 not finite"):
        split_reference(np.array([np.nan] + [0.0] * 60))
    with pytest.raises(InputError, match="false-alarm rate"):
        DriftMonitor([0.0], [1, 1], alarm=1.0)
    with pytest.raises(InputError, match="rising edges"):
        DriftMonitor([1.0, 0.0], [1, 1, 1])
    with pytest.raises(InputError, match="one count more"):
        DriftMonitor([0.0], [1, 1, 1])
    monitor = DriftMonitor([0.0], [5, 5])
    for score in (math.nan, -math.inf):
        with pytest.raises(InputError, match="scores: got .*accepted: numbers"):
            monitor.update([0.1, score])
    state = monitor.to_dict()
    for change in ({"format": "other"}, {"counts": [1]}, {"alarm": "x"}, {"seen": 3, "pool": [0.0]}):
        with pytest.raises(FileFormatError, match="drift monitor"):
            DriftMonitor.from_dict({**state, **change})
    with pytest.raises(FileFormatError, match="drift monitor"):
        DriftMonitor.from_dict([1])


def test_parts_of_a_job_are_merged() -> None:
    rng = np.random.default_rng(0)
    calibration = rng.normal(size=400)
    streams = [rng.normal(size=count) for count in (300, 100, 0)]
    parts = [DriftMonitor.from_scores(calibration) for _ in streams]
    for part, stream in zip(parts, streams):
        part.update(stream)
    merged = merge(parts)
    assert merged.seen == 400 and sum(merged.counts) == sum(merged.reference) + 400
    assert not merged.alarmed and merged.log_wealth < 1
    # At most the mean of the parts' wealth: what they keep back counts as that of one long stream.
    mean = 0.75 * math.exp(parts[0].log_wealth) + 0.25 * math.exp(parts[1].log_wealth)
    kept = 0.75 / 301 + 0.25 / 101
    assert math.exp(merged.log_wealth) == pytest.approx(mean - kept + 1 / 401)
    again = merge([merge(parts[:2]), parts[2]])
    assert again.counts == merged.counts and again.pool == pytest.approx(merged.pool)
    moved = DriftMonitor.from_scores(calibration)
    moved.update(rng.normal(1, size=300))
    late = merge([*parts, moved])
    assert late.alarmed_at == 700 and late.direction == "higher"
    assert merge([parts[2]]).to_dict() == parts[2].to_dict()
    with pytest.raises(InputError, match="monitors of different models"):
        merge([parts[0], DriftMonitor.from_scores(rng.normal(size=400))])


def test_merged_parts_raise_few_false_alarms() -> None:
    """All parts of a job share one calibration set, so their wealth is not independent; the mean of it is still fair."""
    alarms = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        reference = DriftMonitor.from_scores(rng.exponential(size=200), 0.2, seed)
        parts = [DriftMonitor(reference.edges, reference.reference, 0.2, number) for number in range(5)]
        for part in parts:
            part.update(rng.exponential(size=60))
        alarms += merge(parts).alarmed
    assert alarms <= 12 + 2.3 * math.sqrt(60 * 0.2 * 0.8)  # one per cent beyond, if each were as likely as may be
