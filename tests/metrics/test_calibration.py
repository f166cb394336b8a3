"""Calibration against torchmetrics, scikit-learn, and averages over all ways to break ties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss

from abnn import metrics as m
from abnn.errors import InputError
from abnn.networks import vision

from .samples import Pair, examples, generator, predicted_rows


def top_label(probs: np.ndarray, labels: np.ndarray) -> Pair:
    return probs.max(axis=1), probs.argmax(axis=1) == labels


def calibration_error_by_loop(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    error = 0.0
    for number in range(bins):
        low, high = np.linspace(0, 1, bins + 1)[number : number + 2]
        inside = (confidence > low) & (confidence <= high)
        if number == 0:
            inside |= confidence == 0
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    return error


@examples(60)
@given(predicted_rows(), st.sampled_from((1, 2, 10, 15, 100)))
def test_ece_agrees_with_torchmetrics(sample: Pair, bins: int) -> None:
    vision.torchvision()  # torchmetrics imports it, and fails beside a torchvision of another build otherwise
    from torchmetrics.functional.classification import multiclass_calibration_error

    probs, labels = sample
    probs = 0.999 * probs + 0.001 / probs.shape[1]  # torchmetrics gives a confidence of exactly 1 a bin of its own
    reference = multiclass_calibration_error(
        torch.tensor(probs), torch.tensor(labels), probs.shape[1], n_bins=bins, norm="l1"
    )
    rounding = len(probs) * 2.0**-23  # torchmetrics adds up in float32, one by one
    assert m.calibration(probs, labels, bins).ece == pytest.approx(float(reference), abs=rounding)


@examples(80)
@given(st.integers(0, 2**32 - 1), st.sampled_from((1, 5, 60, 500)), st.sampled_from((1, 4, 10, 15)))
def test_ece_agrees_with_a_loop_on_the_edges_of_bins(seed: int, size: int, bins: int) -> None:
    rng = generator(seed)
    confidence, correct = rng.integers(0, 61, size) / 60, rng.random(size) < 0.5
    expected = calibration_error_by_loop(confidence, correct, bins)
    assert m.reliability(confidence, correct, bins).calibration_error == pytest.approx(expected, abs=1e-12)


@examples(60)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 7), st.sampled_from((1, 2, 5)))
def test_adaptive_bins_are_equal_runs_averaged_over_every_order(seed: int, size: int, bins: int, levels: int) -> None:
    rng = generator(seed)
    confidence, correct = rng.integers(0, levels + 1, size) / levels, rng.random(size) < 0.5
    runs = [run for run in np.split(np.arange(size), [b * size // bins for b in range(1, bins)]) if len(run)]
    accuracies, confidences = [], []
    for order in itertools.permutations(range(size)):
        ordered = np.array(order)[np.argsort(confidence[list(order)], kind="stable")]
        accuracies.append([correct[ordered][run].mean() for run in runs])
        confidences.append([confidence[ordered][run].mean() for run in runs])
    diagram = m.reliability(confidence, correct, bins, equal_mass=True)
    np.testing.assert_allclose(diagram.accuracy, np.mean(accuracies, axis=0), atol=1e-12)
    np.testing.assert_allclose(diagram.confidence, np.mean(confidences, axis=0), atol=1e-12)
    assert diagram.count.tolist() == [len(run) for run in runs]
    gaps = np.abs(np.mean(accuracies, axis=0) - np.mean(confidences, axis=0))
    expected = sum(len(run) / size * gap for run, gap in zip(runs, gaps, strict=True))
    assert m.reliability(confidence, correct, bins, equal_mass=True).calibration_error == pytest.approx(
        expected, abs=1e-12
    )


@examples(60)
@given(predicted_rows())
def test_proper_scores(sample: Pair) -> None:
    probs, labels = sample
    result = m.calibration(probs, labels)
    classes = np.arange(probs.shape[1])
    assert result.nll == pytest.approx(log_loss(labels, probs, labels=classes), abs=1e-9)
    assert result.brier == pytest.approx(
        np.mean(np.sum((probs - (labels[:, None] == classes)) ** 2, axis=1)), abs=1e-12
    )
    confidence, correct = top_label(probs, labels)
    assert result.accuracy == np.mean(probs.argmax(axis=1) == labels) == correct.mean()
    assert result.mean_confidence == pytest.approx(probs.max(axis=1).mean())
    assert result.ece == m.reliability(confidence, correct).calibration_error
    assert result.adaptive_ece == m.reliability(confidence, correct, equal_mass=True).calibration_error


@examples(40)
@given(predicted_rows(sizes=(60, 1000)), st.booleans())
def test_the_diagram_holds_every_input_once(sample: Pair, equal_mass: bool) -> None:
    confidence, correct = top_label(*sample)
    diagram = m.reliability(confidence, correct, 15, equal_mass)
    assert diagram.count.sum() == len(confidence) and diagram.count.min() > 0
    assert np.sum(diagram.count * diagram.confidence) == pytest.approx(confidence.sum())
    assert np.sum(diagram.count * diagram.accuracy) == pytest.approx(correct.sum())
    assert np.all(diagram.lower <= diagram.confidence + 1e-12) and np.all(diagram.confidence <= diagram.upper + 1e-12)
    order = generator(0).permutation(len(confidence))
    shuffled = m.reliability(confidence[order], correct[order], 15, equal_mass)
    np.testing.assert_allclose(shuffled.accuracy, diagram.accuracy, atol=1e-12)
    if equal_mass:
        assert np.ptp(diagram.count) <= 1


def test_perfect_and_worst_predictions() -> None:
    labels = np.array([0, 1, 1])
    right = np.eye(2)[labels]
    assert m.calibration(right, labels).to_dict() == {
        "accuracy": 1.0, "mean_confidence": 1.0, "ece": 0.0, "adaptive_ece": 0.0, "brier": 0.0, "nll": 0.0,
    }  # fmt: skip
    worst = m.calibration(1 - right, labels)
    assert (worst.ece, worst.adaptive_ece, worst.brier) == (1.0, 1.0, 2.0)
    assert worst.nll == pytest.approx(36.04, abs=0.01)


def test_half_precision_rows_are_accepted() -> None:
    probs = torch.softmax(torch.randn(50, 10, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = probs.argmax(dim=1)
    assert m.calibration(probs.bfloat16(), labels).brier == pytest.approx(m.calibration(probs, labels).brier, abs=0.01)


@pytest.mark.parametrize(
    ("probs", "labels", "message"),
    [
        ([[2.0, -1.0]], [0], "probs: got values from -1 to 2; .*softmax"),
        ([[0.4, 0.4]], [0], "probs: got row 0 with the sum 0.8; .*softmax"),
        ([0.4, 0.6], [0, 1], r"probs: got an array of shape \(2,\); .*both columns"),
        ([[1.0]], [0], r"probs: got an array of shape \(1, 1\)"),
        (np.zeros((0, 3)), [], "probs: got no rows"),
        ([[float("nan"), 1.0]], [0], "probs: got 1 of 2 values not finite"),
        ([[0.5, 0.5]], [2], "labels: got the class 2; accepted: class numbers from 0 to 1"),
        ([[0.5, 0.5]], [-1], "labels: got the value -1"),
        ([[0.5, 0.5]], [0.5], "labels: got the value 0.5"),
        ([[0.5, 0.5]], [0, 1], "labels: got 2 values; accepted: 1"),
        ([[0.5, 0.5]], [[1, 0]], r"labels: got an array of shape \(1, 2\)"),
        ([["a", "b"]], [0], "probs: got an array of type"),
    ],
)
def test_bad_rows_and_labels(probs: object, labels: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        m.calibration(probs, labels)


def test_bad_confidences() -> None:
    for confidence, correct, bins, message in [
        ([1.5], [True], 15, "confidence: got values from 1.5 to 1.5; .*not a logit"),
        ([0.5], [True, False], 15, "correct: got 2 values; accepted: 1"),
        ([0.5], [2], 15, "correct: got the value 2; .*predictions == labels"),
        ([0.5], [True], 0, "bins: got 0"),
        ([], [], 15, "confidence: got an empty array"),
    ]:
        with pytest.raises(InputError, match=message):
            m.reliability(confidence, correct, bins)
