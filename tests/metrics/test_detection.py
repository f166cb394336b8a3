"""Detection metrics against scikit-learn and against counting in exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import auc, average_precision_score, roc_auc_score
from sklearn.metrics import roc_curve as sklearn_roc_curve

from abnn import metrics as m

from .samples import Pair, examples, generator, groups

FINITE = st.floats(allow_nan=False, allow_infinity=False)
ANY_FLOATS = st.lists(st.one_of(st.sampled_from((0.0, -0.0, 1.0, 5e-324, 1e308, -1e308)), FINITE), min_size=1)


def pooled(id_scores: np.ndarray, ood_scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat([0, 1], [len(id_scores), len(ood_scores)]), np.concatenate([id_scores, ood_scores])


def share(condition: np.ndarray) -> Fraction:
    return Fraction(int(np.count_nonzero(condition)), len(condition))


def best_balanced_accuracy(id_scores: np.ndarray, ood_scores: np.ndarray) -> Fraction:
    thresholds = [-np.inf, *set(np.concatenate([id_scores, ood_scores]))]
    return max((share(id_scores <= t) + share(ood_scores > t)) / 2 for t in thresholds)


def tnr_by_counting(id_scores: np.ndarray, ood_scores: np.ndarray, tpr: Fraction) -> Fraction:
    confident_id, confident_ood = -id_scores, -ood_scores
    allowed = [t for t in set(confident_id) | set(confident_ood) if share(confident_id >= t) >= tpr]
    return share(confident_ood < max(allowed))


def fpr_by_counting(id_scores: np.ndarray, ood_scores: np.ndarray, tpr: Fraction) -> Fraction:
    allowed = [t for t in set(id_scores) | set(ood_scores) if share(ood_scores >= t) >= tpr]
    return share(id_scores >= max(allowed))


@examples(160)
@given(groups(2))
def test_areas_agree_with_scikit_learn(sets: Pair) -> None:
    result = m.detection(*sets)
    is_ood, scores = pooled(*sets)
    assert result.auroc == m.auroc(*sets) == pytest.approx(roc_auc_score(is_ood, scores), abs=1e-12)
    assert result.aupr_out == pytest.approx(average_precision_score(is_ood, scores), abs=1e-12)
    assert result.aupr_in == pytest.approx(average_precision_score(1 - is_ood, -scores), abs=1e-12)


@examples(160)
@given(groups(2, (1, 2, 7, 20, 60)))
def test_thresholded_metrics_agree_with_counting(sets: Pair) -> None:
    tpr, result = Fraction(95, 100), m.detection(*sets)
    assert result.detection_accuracy == pytest.approx(float(best_balanced_accuracy(*sets)), abs=1e-15)
    assert result.tnr_at_tpr95_id_positive == pytest.approx(float(tnr_by_counting(*sets, tpr)), abs=1e-15)
    assert result.fpr_at_tpr95_ood_positive == pytest.approx(float(fpr_by_counting(*sets, tpr)), abs=1e-15)


@examples(120)
@given(ANY_FLOATS, ANY_FLOATS)
def test_any_finite_floats(id_scores: list[float], ood_scores: list[float]) -> None:
    result = m.detection(id_scores, ood_scores)
    higher = sum((o > i) + (o == i) / 2 for i in id_scores for o in ood_scores)
    assert result.auroc == pytest.approx(higher / len(id_scores) / len(ood_scores), abs=1e-12)
    arrays = np.array(id_scores), np.array(ood_scores)
    assert result.detection_accuracy == pytest.approx(float(best_balanced_accuracy(*arrays)), abs=1e-15)
    assert all(0 <= value <= 1 for value in result.numbers().values())


@examples(80)
@given(groups(2))
def test_invariances(sets: Pair) -> None:
    id_scores, ood_scores = sets
    result = m.detection(id_scores, ood_scores)
    rng = generator(len(id_scores))
    assert m.detection(rng.permutation(id_scores), rng.permutation(ood_scores)) == result
    _, rank = np.unique(np.concatenate(sets), return_inverse=True)  # a strictly increasing function of the score
    assert m.detection(rank[: len(id_scores)], rank[len(id_scores) :]) == result
    mirrored = m.detection(-ood_scores, -id_scores)  # exchanging the roles and the direction
    assert mirrored.auroc == result.auroc
    assert (mirrored.aupr_in, mirrored.aupr_out) == (result.aupr_out, result.aupr_in)
    assert mirrored.detection_accuracy == pytest.approx(result.detection_accuracy, abs=1e-15)
    assert mirrored.tnr_at_tpr95_id_positive == pytest.approx(1 - result.fpr_at_tpr95_ood_positive, abs=1e-15)


@examples(60)
@given(groups(2))
def test_roc_curve_holds_the_points_of_scikit_learn_and_the_area(sets: Pair) -> None:
    curve = m.roc_curve(*sets)
    is_ood, scores = pooled(*sets)
    fpr, tpr, _ = sklearn_roc_curve(is_ood, scores, drop_intermediate=False)
    np.testing.assert_allclose(curve.fpr[::-1], fpr, atol=1e-15)
    np.testing.assert_allclose(curve.tpr[::-1], tpr, atol=1e-15)
    assert auc(curve.fpr, curve.tpr) == pytest.approx(m.auroc(*sets), abs=1e-12)
    middle = len(curve.threshold) // 2
    assert curve.tpr[middle] == np.mean(sets[1] >= curve.threshold[middle])


@pytest.mark.parametrize("n", [20, 40, 100, 2000])
def test_exactly_95_percent_is_enough(n: int) -> None:
    """The 0.95 n-th ID score is the threshold, although 0.95 has no exact binary form."""
    id_scores = np.arange(n)
    threshold = n * 95 // 100 - 1
    assert m.detection(id_scores, [threshold, threshold + 0.5]).tnr_at_tpr95_id_positive == 0.5
    assert m.detection([-threshold, -threshold - 0.5], -id_scores).fpr_at_tpr95_ood_positive == 0.5


def test_the_two_95_percent_numbers_differ() -> None:
    id_scores, ood_scores = np.arange(100.0), np.append(np.full(90, 1000.0), np.full(10, -1.0))
    result = m.detection(id_scores, ood_scores)
    assert result.tnr_at_tpr95_id_positive == 0.9
    assert result.fpr_at_tpr95_ood_positive == 1.0


def test_constant_scores_are_chance() -> None:
    result = m.detection(np.zeros(30), np.zeros(10))
    assert list(result.numbers().values()) == [0.5, 0.75, 0.25, 0.5, 0.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64])
def test_tensors_lists_and_arrays_give_the_same(dtype: torch.dtype) -> None:
    id_scores = torch.tensor([0.0, 1.0, 1.0, 2.0]).to(dtype)
    ood_scores = torch.tensor([1.0, 3.0, 4.0]).to(dtype)
    expected = m.detection(id_scores.tolist(), ood_scores.tolist())
    assert m.detection(id_scores, ood_scores) == expected
    assert m.detection(id_scores.double().numpy(), ood_scores.double().numpy()) == expected
    assert m.detection(id_scores.double().requires_grad_(), ood_scores) == expected


def test_input_arrays_are_left_alone() -> None:
    arrays = generator(0).normal(size=50), generator(1).normal(size=50)
    copies = [array.copy() for array in arrays]
    m.detection(*arrays)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("decimals", [12, 3])
def test_a_million_scores_come_close_to_the_closed_form(decimals: int) -> None:
    rng = generator(0)
    sets = [np.round(rng.normal(shift, 1, size=500_000), decimals) for shift in (0, 1)]
    # the standard error of the area is below sqrt(1 / (4 * 500,000)), rounding is far below it
    assert m.detection(*sets).auroc == pytest.approx(NormalDist().cdf(1 / math.sqrt(2)), abs=4 * 7.1e-4)
