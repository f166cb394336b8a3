"""Telling right predictions from wrong ones by the score: detection with the model's own errors as the outliers."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Bools, Floats, Result, as_booleans, as_scores
from abnn.metrics.detection import detection


@dataclass(frozen=True)
class Misclassification(Result):
    """The accuracy, and the numbers of `Detection` with success in the place of ID and error in the place of OOD."""

    accuracy: float
    auroc: float
    aupr_success: float
    aupr_error: float
    detection_accuracy: float
    tnr_at_tpr95_success_positive: float
    fpr_at_tpr95_error_positive: float


def misclassification(scores: ArrayLike, correct: ArrayLike) -> Misclassification:
    """How well the score tells wrong predictions (which should score high) from right ones.

    Two models are comparable only at similar accuracy: each is tested on its own errors, and ``aupr_error`` of a
    useless score equals the error rate.
    """
    right, wrong = split_by_correctness(scores, correct)
    return Misclassification(len(right) / (len(right) + len(wrong)), *astuple(detection(right, wrong)))


def scores_and_correct(scores: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    """Both arrays checked, and of one length."""
    values = as_scores(scores, "scores")
    return values, as_booleans(correct, "correct", len(values), "scores")


def split_by_correctness(scores: ArrayLike, correct: ArrayLike) -> tuple[Floats, Floats]:
    """The scores of the right and of the wrong predictions; both must exist."""
    values, right = scores_and_correct(scores, correct)
    if np.all(right) or not np.any(right):
        fault = f"{len(right)} predictions that are all {'right' if right[0] else 'wrong'}"
        fix = "Misclassification detection is undefined here; report the accuracy alone, or use more data."
        raise InputError(explain("correct", fault, "at least one right and one wrong prediction", fix))
    return values[right], values[~right]
