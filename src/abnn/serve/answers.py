"""From predictions to answers: numbers for programs, and sentences for people."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.scores import outside, unfit
from abnn.store.saved import class_names_of
from abnn.triage.calibrate import seven_digits

OUTSIDE = 0.25  # how far outside, see abnn.scores.outside, an input must be to count as unlike the training data
DIFFERENT = 0.1  # the same for "looks different": there the distance is most of the score already
UNFIT = 0.5  # share of what is rare among good inputs from which an input counts as unlike its class


def class_names(model: Any) -> list[str]:
    """Return the names that were saved with the model, or the numbers of the classes."""
    return class_names_of(model) or [str(number) for number in range(model.classes)]


class Answerer:
    """A model with its thresholds: inputs [B, ...] to one answer for each, in the form of :class:`abnn.serve.schema.Answer`."""

    def __init__(self, model: Any) -> None:
        if getattr(model, "triage", None) is None:
            fix = (
                "Calibrate with abnn.Triage.calibrate(model, held_out) and save it with model.save(..., triage=triage)."
            )
            raise InputError(explain("model", "a model without thresholds", "a model saved with its triage", fix))
        self.model, self.triage = model, model.triage
        self.names = class_names(model)
        scores = getattr(model.triage, "calibration", None)
        self.calibration = np.sort(np.asarray(scores, float)) if scores is not None and len(scores) else None

    def __call__(self, x: Tensor) -> list[dict[str, Any]]:
        prediction = self.model.predict(x, draws=self.triage.draws, seed=self.triage.seed)
        verdicts = self.triage(prediction)
        samples, scores = prediction.samples.float().cpu(), verdicts.score.float().cpu()
        if not (torch.isfinite(samples).all() and torch.isfinite(scores).all()):
            raise FloatingPointError("the model gave NaN or infinite values")
        probs = self.triage.probabilities(prediction).float().cpu().numpy()
        reach: list[float | None] = [None] * len(prediction)
        misfit = reach
        if prediction.gate is not None and prediction.distance is not None:
            reach = outside(prediction.distance.float().cpu(), prediction.gate).tolist()
        if prediction.gate is not None and prediction.misfit is not None:
            misfit = unfit(prediction.own_misfit.float().cpu(), prediction.gate).tolist()
        return [
            self._describe(samples[:, row].numpy(), probs[row], float(scores[row]), verdict, reach[row], misfit[row])
            for row, verdict in enumerate(verdicts.verdict)
        ]

    def _describe(
        self,
        samples: np.ndarray,
        probs: np.ndarray,
        score: float,
        verdict: str,
        reach: float | None,
        misfit: float | None,
    ) -> dict[str, Any]:
        label, second = np.argsort(-probs, kind="stable")[:2].tolist()
        of_label, labels = samples[:, label], samples.argmax(1)
        place = None if self.calibration is None else share_below(self.calibration, score)
        agreeing, draws = int((labels == label).sum()), len(samples)
        name, probability = self.names[label], float(probs[label])
        why = reason(verdict, name, probability, self.names[second], agreeing, draws, reach, misfit, place)
        own = getattr(self.triage, "thresholds", None)  # those of the predicted class, where classes have their own
        notice, reject = own(label) if own is not None else (self.triage.notice, self.triage.reject)
        return {
            "label": label,
            "class_name": name,
            "probability": round(probability, 6),
            "probabilities": _rounded(probs),
            "score": score,
            "verdict": verdict,
            "reason": why,
            "thresholds": {"notice": finite(notice), "reject": finite(reject)},
            "calibration": {"share_below": None if place is None else round(place, 6)},
            "draws": {
                "count": draws,
                "agreement": round(agreeing / draws, 6),
                "spread": round(float(of_label.std()), 6),
                "labels": labels.tolist(),
                "probabilities": _rounded(of_label),
            },
        }


def reason(
    verdict: str,
    name: str,
    probability: float,
    second: str,
    agreeing: int,
    draws: int,
    reach: float | None,
    misfit: float | None,
    place: float | None,
) -> str:
    """Return why the verdict is what it is, in one or two sentences without technical words. None: not known.

    second           name of the second most probable class
    agreeing, draws  how many draws name the predicted class on their own, and how many there are
    reach            how far the features lie outside, 0 to 1, see :func:`abnn.scores.outside`
    misfit           how badly they fit to the predicted class, -1 to 1, see :func:`abnn.scores.unfit`
    place            at least this share of the calibration scores lies below, 1 if all do
    """
    name, sure = f"“{name}”", probability >= 0.5
    unlike = sure and misfit is not None and misfit >= UNFIT
    votes = f"all {draws} draws" if agreeing == draws else f"{agreeing} of {draws} draws"
    if verdict == "accept":
        return f"This looks like the data that the model was trained on, and {votes} read it as {name}."
    if verdict == "notice":
        if not sure:
            first = f"The model hesitates between {name} and “{second}”."
        elif reach is not None and reach >= DIFFERENT:
            first = f"This looks different from the training data, but {votes} still read it as {name}."
        elif unlike:
            first = f"The model reads this as {name}, but it is unlike most that it learned that from."
        else:
            first = f"The model is less sure than usual: {votes} read this as {name}."
    elif reach is None or reach >= OUTSIDE:
        first = "This does not look like anything the model was trained on."
    elif unlike:
        first = f"The model would say {name}, but this is unlike what it learned that from."
    else:
        first = f"The model cannot tell what this is: {votes} say {name}, which may be chance."
    if place is None or place < 0.9:
        return first
    share = "None" if place >= 1 else f"At most {100 * (1 - place):.0f} %"
    return f"{first} {share} of the good inputs used for calibration {'was' if place >= 1 else 'were'} as uncertain."


def share_below(quantiles: np.ndarray, score: float) -> float:
    """Return the largest share that the quantiles vouch for: at least so many calibration scores are smaller.

    Kept quantiles have seven digits, so that the score of a calibration input may be a little above its own quantile; with
    as many digits the two are equal.
    """
    smaller = int(np.searchsorted(quantiles, seven_digits(score), side="left"))
    return max(0, smaller - 1) / (len(quantiles) - 1)


def outline(sorted_scores: np.ndarray | None, points: int = 101) -> list[float] | None:
    """Return quantiles for a picture of the distribution, at most ``points`` of them."""
    if sorted_scores is None:
        return None
    few = len(sorted_scores) <= points
    values = sorted_scores if few else np.quantile(sorted_scores, np.linspace(0, 1, points))
    return [seven_digits(value) for value in values]


def finite(value: Any) -> float | None:
    """Return a threshold as JSON can hold it; not rounded, so that anyone can compare it with a score."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _rounded(values: np.ndarray) -> list[float]:
    return [round(value, 6) for value in values.astype(float).tolist()]
