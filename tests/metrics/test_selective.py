"""Selective prediction against averages over all ways to break ties, loops, and a closed form."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from abnn import metrics as m

from .samples import Pair, examples, generator, scored_predictions


def risks_in_order(correct: np.ndarray) -> np.ndarray:
    """Risk after each answer, for inputs already sorted by certainty."""
    errors, risks = 0, []
    for answered, right in enumerate(correct, start=1):
        errors += not right
        risks.append(errors / answered)
    return np.array(risks)


@examples(60)
@given(scored_predictions(sizes=(2, 3, 4, 5), both=False))
def test_ties_are_the_average_over_every_order(sample: Pair) -> None:
    scores, correct = sample
    curves = []
    for order in itertools.permutations(range(len(scores))):
        shuffled = np.array(order)
        by_certainty = shuffled[np.argsort(scores[shuffled], kind="stable")]
        curves.append(risks_in_order(correct[by_certainty]))
    expected = np.mean(curves, axis=0)
    curve = m.risk_coverage(scores, correct)
    np.testing.assert_allclose(curve.risk, expected, atol=1e-12)
    np.testing.assert_allclose(curve.coverage, np.arange(1, len(scores) + 1) / len(scores))
    assert m.selective(scores, correct).aurc == pytest.approx(expected.mean(), abs=1e-12)


@examples(80)
@given(scored_predictions(both=False))
def test_areas(sample: Pair) -> None:
    scores, correct = sample
    result = m.selective(scores, correct)
    optimum = risks_in_order(np.sort(correct)[::-1]).mean()
    curve = m.risk_coverage(scores, correct)
    assert result.error_rate == pytest.approx(1 - np.mean(correct), abs=1e-15)
    assert result.aurc == pytest.approx(curve.risk.mean(), abs=1e-12)
    assert result.optimal_aurc == pytest.approx(optimum, abs=1e-12)
    assert result.excess_aurc == pytest.approx(result.aurc - optimum, abs=1e-12) and result.excess_aurc >= 0
    assert curve.risk[-1] == pytest.approx(result.error_rate, abs=1e-12)
    order = generator(len(scores)).permutation(len(scores))
    assert m.selective(scores[order], correct[order]) == result


@examples(80)
@given(scored_predictions())
def test_generalised_risk_follows_from_accuracy_and_auroc(sample: Pair) -> None:
    scores, correct = sample
    numbers = m.misclassification(scores, correct)
    error = 1 - numbers.accuracy
    expected = (1 - numbers.auroc) * numbers.accuracy * error + error**2 / 2
    assert m.selective(scores, correct).augrc == pytest.approx(expected, abs=1e-12)


def test_a_perfect_score_has_no_excess_and_a_constant_one_the_error_rate() -> None:
    correct = np.array([True, True, True, False])
    assert m.selective([0.0, 1.0, 2.0, 3.0], correct).excess_aurc == 0
    assert m.selective(np.zeros(4), correct).aurc == 0.25


def test_all_right_and_all_wrong_are_defined() -> None:
    assert set(m.selective([1.0, 2.0], [True, True]).numbers().values()) == {0.0}
    assert list(m.selective([1.0, 2.0], [False, False]).numbers().values()) == [1.0, 1.0, 1.0, 0.0, 0.5]
