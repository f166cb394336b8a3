"""Misclassification detection against scikit-learn, with errors as the positive class."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from sklearn.metrics import average_precision_score, roc_auc_score

from abnn import metrics as m
from abnn.errors import InputError

from .samples import Pair, examples, scored_predictions


@examples(120)
@given(scored_predictions())
def test_agrees_with_scikit_learn(sample: Pair) -> None:
    scores, correct = sample
    result = m.misclassification(scores, correct)
    assert result.accuracy == pytest.approx(np.mean(correct), abs=1e-15)
    assert result.auroc == pytest.approx(roc_auc_score(~correct, scores), abs=1e-12)
    assert result.aupr_error == pytest.approx(average_precision_score(~correct, scores), abs=1e-12)
    assert result.aupr_success == pytest.approx(average_precision_score(correct, -scores), abs=1e-12)


@examples(40)
@given(scored_predictions())
def test_names_map_onto_detection_of_the_errors(sample: Pair) -> None:
    scores, correct = sample
    result, same = m.misclassification(scores, correct), m.detection(scores[correct], scores[~correct])
    assert result.detection_accuracy == same.detection_accuracy
    assert result.tnr_at_tpr95_success_positive == same.tnr_at_tpr95_id_positive
    assert result.fpr_at_tpr95_error_positive == same.fpr_at_tpr95_ood_positive


def test_numbers_0_and_1_count_as_flags() -> None:
    assert m.misclassification([0.1, 0.2, 0.9], [1, 1, 0]) == m.misclassification([0.1, 0.2, 0.9], [True, True, False])


@pytest.mark.parametrize(("flag", "word"), [(True, "right"), (False, "wrong")])
def test_a_single_class_is_refused(flag: bool, word: str) -> None:
    with pytest.raises(InputError, match=f"correct: got 3 predictions that are all {word}; .*report the accuracy"):
        m.misclassification([0.1, 0.2, 0.3], [flag] * 3)
