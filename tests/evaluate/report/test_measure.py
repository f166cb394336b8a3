"""The numbers of the page equal those of abnn.metrics on the same arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from abnn import metrics
from abnn.evaluate.evaluation import TIERS, Evaluation
from abnn.evaluate.report import measure
from abnn.evaluate.report.measure import BRIER, CORRECT, NLL, columns, resamples_for, same_inputs

from .samples import make_evaluation, make_pair, make_set


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_RESAMPLES", 100)


def test_columns_average_to_the_metrics_of_whole_rows() -> None:
    result = make_set("printed", "semi", (2, 4), classes=7)
    expected = metrics.calibration(result.probs, result.labels)
    means = columns(result, "entropy").mean(axis=0)
    # both sum the same float32 rows in float64, in another order
    assert means[BRIER] == pytest.approx(expected.brier, rel=1e-9)
    assert means[NLL] == pytest.approx(expected.nll, rel=1e-9)
    assert means[CORRECT] == expected.accuracy


def test_estimates_equal_the_metrics() -> None:
    pair = make_pair()
    found = measure.measure(pair)
    for evaluation, numbers in zip(pair, found.by_model, strict=True):
        low, middle, high = (evaluation.scores(tier) for tier in TIERS)
        tiers = metrics.tiers(low, middle, high)
        assert numbers["auroc_id_semi", ""].estimate == tiers.auroc_id_below_semi
        assert numbers["auroc_semi_full", ""].estimate == tiers.auroc_semi_below_full
        assert numbers["auroc_id_full", ""].estimate == tiers.auroc_id_below_full
        assert numbers["ordered_triples", ""].estimate == pytest.approx(tiers.ordered_triples, rel=1e-12)
        for name, value in metrics.detection(low, high).numbers().items():
            assert numbers[name, "photographs"].estimate == value
        on_id = evaluation.tier("id")[0]
        for name, value in metrics.selective(low, on_id.correct).numbers().items():
            if name != "optimal_aurc":
                assert numbers[name, ""].estimate == numbers[name, "handwritten"].estimate == value
        mistakes = metrics.misclassification(low, on_id.correct)
        assert numbers["misclassification_auroc", ""].estimate == mistakes.auroc
        calibration = metrics.calibration(on_id.probs, on_id.labels)
        assert numbers["ece", ""].estimate == pytest.approx(calibration.ece, rel=1e-9)
        assert numbers["accuracy_id", ""].estimate == calibration.accuracy


def test_intervals_hold_their_estimates_and_are_wider_for_fewer_inputs() -> None:
    def interval(size: int) -> metrics.Interval:
        return measure.measure([make_evaluation(size=size)]).by_model[0]["auroc_id_semi", ""]

    small, large = interval(60), interval(1500)
    for each in (small, large):
        assert each.low <= each.estimate <= each.high
    # 25 times the inputs shrink an interval by 5 on average
    assert small.high - small.low > 2 * (large.high - large.low)


def test_difference_is_paired() -> None:
    """A model against itself differs by exactly nothing, which separate resamples would not give."""
    one = make_evaluation("one")
    found = measure.measure([one, replace(one, name="other")])
    assert found.difference
    assert all(each.low == each.high == each.estimate == 0 for each in found.difference.values())


def test_other_inputs_give_no_difference() -> None:
    first, second = pair = make_pair()
    assert same_inputs(pair)
    changed = replace(second.sets[0], data_hash="cd" * 32)
    other = replace(second, sets=(changed, *second.sets[1:]))
    assert not same_inputs([first, other])
    assert not same_inputs([first, replace(second, sets=second.sets[:2])])
    found = measure.measure([first, other])
    assert found.difference == {}
    assert all(("auroc_id_full", "") in numbers for numbers in found.by_model)


def test_mistakes_need_right_and_wrong_predictions() -> None:
    result = make_set("handwritten", "id", (0.4, 8))
    perfect = replace(result, labels=result.predicted)
    evaluation = Evaluation("perfect", "entropy", (perfect,))
    numbers = measure.measure([evaluation]).by_model[0]
    assert ("misclassification_auroc", "") not in numbers
    assert numbers["accuracy_id", ""].estimate == 1.0


def test_partly_labelled_sets_have_no_accuracy() -> None:
    result = make_set("handwritten", "id", (0.4, 8))
    labels = np.where(np.arange(len(result)) < 5, -1, result.labels)
    numbers = measure.measure([Evaluation("e", "entropy", (replace(result, labels=labels),))]).by_model[0]
    assert numbers == {}


def test_resamples_shrink_with_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert resamples_for(100) == 400
    assert resamples_for(10_000) == 200
    assert resamples_for(10_000_000) == 100
