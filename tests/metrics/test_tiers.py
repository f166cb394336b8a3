"""Tier metrics against loops over all triples and all pairs of thresholds, scikit-learn and scipy."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from abnn import metrics as m
from abnn.errors import InputError

from .samples import Triple, examples, groups

SMALL = (1, 2, 3, 5, 8)


def predicted_tiers(sets: Triple, thresholds: m.TierThresholds) -> tuple[list[int], list[int]]:
    true = [tier for tier, group in enumerate(sets) for _ in group]
    bounds = thresholds.id_semi, thresholds.semi_full
    return true, [sum(score > bound for bound in bounds) for group in sets for score in group]


@examples(80)
@given(groups(3, SMALL))
def test_ordered_triples_is_the_average_over_random_tie_breaking(sets: Triple) -> None:
    tie_breaks = list(itertools.permutations(range(3)))
    hits = sum(
        (i, order[0]) < (s, order[1]) < (f, order[2]) for i, s, f in itertools.product(*sets) for order in tie_breaks
    )
    expected = hits / (len(tie_breaks) * np.prod([len(group) for group in sets]))
    assert m.ordered_triples(*sets) == pytest.approx(expected, abs=1e-12)


@examples(80)
@given(groups(3))
def test_record(sets: Triple) -> None:
    result = m.tiers(*sets)
    id_scores, semi_scores, full_scores = sets
    assert result.auroc_id_below_semi == m.auroc(id_scores, semi_scores)
    assert result.auroc_semi_below_full == m.auroc(semi_scores, full_scores)
    assert result.auroc_id_below_full == m.auroc(id_scores, full_scores)
    assert result.ordered_triples == m.ordered_triples(*sets)
    assert result.clusters == m.cluster_confusion(*sets)
    assert result.cluster_balanced_accuracy == result.clusters.balanced_accuracy
    assert result.threshold is None and result.threshold_balanced_accuracy is None
    json.dumps(result.to_dict(), allow_nan=False)
    assert m.tiers(id_scores[::-1], np.sort(semi_scores), full_scores[::-1]) == result


@examples(80)
@given(groups(3))
def test_confusion_agrees_with_scikit_learn(sets: Triple) -> None:
    thresholds = m.TierThresholds(*np.quantile(np.concatenate(sets), [0.4, 0.7]))
    for result in (m.tier_confusion(*sets, thresholds), m.cluster_confusion(*sets)):
        true, predicted = predicted_tiers(sets, result.thresholds)
        assert np.array_equal(result.matrix, confusion_matrix(true, predicted, labels=[0, 1, 2]))
        assert result.accuracy == pytest.approx(accuracy_score(true, predicted), abs=1e-12)
        assert result.balanced_accuracy == pytest.approx(balanced_accuracy_score(true, predicted), abs=1e-12)
        recalls = [row[tier] / sum(row) for tier, row in enumerate(result.matrix)]
        assert [result.recall_id, result.recall_semi, result.recall_full] == pytest.approx(recalls)
    given_thresholds = m.tiers(*sets, thresholds=thresholds)
    assert given_thresholds.threshold is not None
    assert given_thresholds.threshold == m.tier_confusion(*sets, thresholds)
    assert given_thresholds.threshold_balanced_accuracy == given_thresholds.threshold.balanced_accuracy


def test_constant_scores_are_chance() -> None:
    result = m.tiers(np.zeros(4), np.zeros(5), np.zeros(6))
    assert result.auroc_id_below_semi == result.auroc_semi_below_full == result.auroc_id_below_full == 0.5
    assert result.ordered_triples == pytest.approx(1 / 6, abs=1e-15)
    assert result.cluster_balanced_accuracy == pytest.approx(1 / 3, abs=1e-15)


def test_perfect_order() -> None:
    result = m.tiers([0.0, 0.1], [5.0, 5.1], [9.0, 9.1])
    assert result.ordered_triples == result.cluster_balanced_accuracy == 1.0
    assert result.clusters.matrix == ((2, 0, 0), (0, 2, 0), (0, 0, 2))


@pytest.mark.parametrize("pair", [(2.0, 1.0), (0.0, float("nan")), (float("-inf"), 0.0)])
def test_thresholds_must_be_ordered_and_finite(pair: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="thresholds: got id_semi=.*abnn.calibrate"):
        m.TierThresholds(*pair)


def test_tier_accuracy() -> None:
    assert m.tier_accuracy([0, 1, 2, 2], [0, 1, 1, 2]) == 0.75
    with pytest.raises(InputError, match="labels: got 2 values; accepted: 3, as many as predictions"):
        m.tier_accuracy([0, 1, 2], [0, 1])
