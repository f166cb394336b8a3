"""The collecting classes: the same numbers as the functions, whatever the batches, devices and processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from abnn import metrics as m
from abnn.errors import InputError

RNG = np.random.default_rng(0)
SCORES = torch.tensor(RNG.normal(size=60)).round(decimals=1)
FLAGS = torch.tensor(RNG.random(60) < 0.6)
TIER = torch.tensor(RNG.integers(0, 3, 60))
BY_TIER = SCORES[TIER == 0], SCORES[TIER == 1], SCORES[TIER == 2]
PROBS = torch.tensor(RNG.dirichlet(np.ones(4), 60))
LABELS = torch.tensor(RNG.integers(0, 4, 60))
THRESHOLDS = m.TierThresholds(-0.5, 0.5)

CASES: list[Any] = [
    (lambda: m.DetectionMetric(), SCORES, FLAGS, m.detection(SCORES[~FLAGS], SCORES[FLAGS])),
    (lambda: m.MisclassificationMetric(), SCORES, FLAGS, m.misclassification(SCORES, FLAGS)),
    (lambda: m.SelectiveMetric(), SCORES, FLAGS, m.selective(SCORES, FLAGS)),
    (lambda: m.TierMetric(), SCORES, TIER, m.tiers(*BY_TIER)),
    (
        lambda: m.TierMetric(THRESHOLDS),
        SCORES,
        TIER,
        m.tiers(*BY_TIER, thresholds=THRESHOLDS),
    ),
    (lambda: m.CalibrationMetric(bins=7), PROBS, LABELS, m.calibration(PROBS, LABELS, bins=7)),
]


def floats(computed: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in computed.items()}


@pytest.mark.parametrize(("make", "first", "second", "expected"), CASES)
@pytest.mark.parametrize("batch", [1, 7, 60])
def test_batches_give_what_the_function_gives(make: Any, first: Any, second: Any, expected: Any, batch: int) -> None:
    metric = make()
    for start in range(0, 60, batch):
        metric.update(first[start : start + batch], second[start : start + batch])
    assert floats(metric.compute()) == expected.numbers()
    metric.reset()
    metric.update(first, second)
    assert floats(metric.compute()) == expected.numbers()


@pytest.mark.parametrize(("make", "first", "second", "expected"), CASES)
def test_processes_are_joined(make: Any, first: Any, second: Any, expected: Any) -> None:
    """The other process is played by a gather function that adds the half this process has not seen."""
    metric = make()
    metric.update(first[:25], second[:25])
    rest = {torch.float64: first[25:], torch.int64: second[25:].long()}
    metric.dist_sync_fn = lambda state, group=None: [state, rest[state.dtype]]
    metric.distributed_available_fn = lambda: True
    assert floats(metric.compute()) == expected.numbers()


def test_one_flag_or_name_for_a_whole_batch() -> None:
    detection, tiers = m.DetectionMetric(), m.TierMetric()
    for number, name in enumerate(("id", "semi", "full")):
        tiers.update(SCORES[TIER == number], name)
    detection.update(SCORES[~FLAGS], False)
    detection.update(SCORES[FLAGS].float(), True)  # another precision joins in
    assert floats(tiers.compute()) == m.tiers(*BY_TIER).numbers()
    assert floats(detection.compute())["auroc"] == pytest.approx(m.auroc(SCORES[~FLAGS], SCORES[FLAGS]), abs=0.05)


def test_works_in_a_collection() -> None:
    m.DetectionMetric()
    from torchmetrics import MetricCollection

    collection = MetricCollection({"errors": m.MisclassificationMetric(), "selective": m.SelectiveMetric()})
    collection.update(SCORES, FLAGS)
    expected = m.misclassification(SCORES, FLAGS).numbers() | m.selective(SCORES, FLAGS).numbers()
    assert floats(collection.compute()) == expected


def test_no_gradients_are_kept() -> None:
    metric = m.MisclassificationMetric()
    metric.update(SCORES.clone().requires_grad_(), FLAGS)
    assert not metric.first[0].requires_grad


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_errors() -> None:
    with pytest.raises(InputError, match="update: got no batches"):
        m.DetectionMetric().compute()
    with pytest.raises(InputError, match=r"scores: got a tensor of shape \(60, 1\)"):
        m.DetectionMetric().update(SCORES[:, None], FLAGS)
    with pytest.raises(InputError, match=r"correct: got a tensor of shape \(59,\); .*60 values, as many as scores"):
        m.SelectiveMetric().update(SCORES, FLAGS[1:])
    with pytest.raises(InputError, match="tier: got 'ful'.*Did you mean 'full'"):
        m.TierMetric().update(SCORES, "ful")
    with pytest.raises(InputError, match="bins: got 0"):
        m.CalibrationMetric(bins=0)
    tiers = m.TierMetric()
    tiers.update(SCORES, TIER + 1)
    with pytest.raises(InputError, match="tier: got 3; accepted: 0 .id., 1"):
        tiers.compute()
    single = m.DetectionMetric()
    single.update(SCORES, False)
    with pytest.raises(InputError, match="ood_scores: got an empty array"):
        single.compute()
    cases: list[tuple[Any, torch.Tensor, str]] = [
        (m.DetectionMetric(), FLAGS * 0.7, "is_ood: got 0.7; accepted: booleans, or 0 and 1"),
        (m.MisclassificationMetric(), FLAGS * 0.7, "correct: got the value 0.7"),
        (m.SelectiveMetric(), FLAGS * 0.7, "correct: got the value 0.7"),
        (m.TierMetric(), TIER * 0.9, "tier: got 0.9; accepted: 0"),
        (m.CalibrationMetric(), LABELS + 0.5, "labels: got the value"),
    ]
    for metric, values, message in cases:  # a fraction is no label, and is not cut to one
        metric.update(PROBS if isinstance(metric, m.CalibrationMetric) else SCORES, values)
        with pytest.raises(InputError, match=message):
            metric.compute()


def test_whole_numbers_of_any_type_are_labels() -> None:
    calibration, detection = m.CalibrationMetric(), m.DetectionMetric()
    calibration.update(PROBS[:30], LABELS[:30].float())
    calibration.update(PROBS[30:], LABELS[30:])
    detection.update(SCORES, FLAGS.half())
    assert floats(calibration.compute()) == m.calibration(PROBS, LABELS).numbers()
    assert floats(detection.compute()) == m.detection(SCORES[~FLAGS], SCORES[FLAGS]).numbers()
