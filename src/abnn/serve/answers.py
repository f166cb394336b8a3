"""From predictions to answers: numbers for programs, and sentences for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The names that were saved with the model, or the numbers of the classes."""
    return class_names_of(model) or [str(number) for number in range(model.classes)]


def calibration_scores(triage: Any) -> np.ndarray | None:
    """0 % to 100 % quantiles of the scores that the thresholds were calibrated on, if they were kept."""
    scores = getattr(triage, "calibration", None)
    return None if scores is None or len(scores) == 0 else np.sort(np.asarray(scores, float))


class Answerer:
    """A model with its thresholds: inputs [B, ...] to one answer for each."""

    def __init__(self, model: Any) -> None:
        if getattr(model, "triage", None) is None:
            fix = (
                "Calibrate with abnn.Triage.calibrate(model, held_out) and save it with model.save(..., triage=triage)."
            )
            raise InputError(explain("model", "a model without thresholds", "a model saved with its triage", fix))
        self.model, self.triage = model, model.triage
        self.names = class_names(model)
        self.calibration = calibration_scores(model.triage)

    def __call__(self, x: Tensor) -> list[dict[str, Any]]:
        prediction = self.model.predict(x, draws=self.triage.draws, seed=self.triage.seed)
        decided = self.triage(prediction)
        samples = prediction.samples.float().cpu()
        scores = decided.score.float().cpu()
        if not (torch.isfinite(samples).all() and torch.isfinite(scores).all()):
            raise FloatingPointError("the model gave NaN or infinite values")
        probs = self.triage.probabilities(prediction).float().cpu().numpy()
        reach, misfit = _reach(prediction), _misfit(prediction)
        return [
            self._one(samples[:, row].numpy(), probs[row], float(scores[row]), verdict, reach[row], misfit[row])
            for row, verdict in enumerate(decided.verdict)
        ]

    def _one(
        self,
        samples: np.ndarray,
        probs: np.ndarray,
        score: float,
        verdict: str,
        reach: float | None,
        misfit: float | None,
    ) -> dict[str, Any]:
        label = int(probs.argmax())
        of_label, labels = samples[:, label], samples.argmax(1)
        place = None if self.calibration is None else share_below(self.calibration, score)
        facts = Facts(
            verdict,
            self.names[label],
            float(probs[label]),
            self.names[int(np.argsort(-probs, kind="stable")[1])],
            int((labels == label).sum()),
            len(samples),
            reach,
            misfit,
            place,
        )
        return {
            "label": label,
            "class_name": self.names[label],
            "probability": _rounded(probs[label]),
            "probabilities": [_rounded(value) for value in probs],
            "score": score,
            "verdict": verdict,
            "reason": reason(facts),
            "thresholds": dict(zip(("notice", "reject"), map(finite, self._thresholds(label)))),
            "calibration": {"share_below": None if place is None else _rounded(place)},
            "draws": {
                "count": len(samples),
                "agreement": _rounded(facts.agreeing / facts.draws),
                "spread": _rounded(of_label.std()),
                "labels": labels.tolist(),
                "probabilities": [_rounded(value) for value in of_label],
            },
        }

    def _thresholds(self, label: int) -> tuple[float, float]:
        """Those of the predicted class, where classes have their own."""
        own = getattr(self.triage, "thresholds", None)
        return own(label) if own is not None else (self.triage.notice, self.triage.reject)


@dataclass(frozen=True)
class Facts:
    """What a sentence about one prediction is made of.

    agreeing, draws  how many draws name the predicted class on their own, and how many there are
    reach            how far the features lie outside, 0 to 1, see :func:`abnn.scores.formulas.outside`; None: not known
    misfit           how badly they fit to the predicted class, -1 to 1, see :func:`abnn.scores.formulas.unfit`; None: not known
    place            at least this share of the calibration scores lies below, 1 if all do; None: not known
    """

    verdict: str
    name: str
    probability: float
    second: str
    agreeing: int
    draws: int
    reach: float | None
    misfit: float | None
    place: float | None


def reason(facts: Facts) -> str:
    """Why the verdict is what it is, in one or two sentences without technical words."""
    outside = facts.reach is None or facts.reach >= OUTSIDE
    decided = facts.probability >= 0.5
    unlike = decided and facts.misfit is not None and facts.misfit >= UNFIT
    votes = f"all {facts.draws} draws" if facts.agreeing == facts.draws else f"{facts.agreeing} of {facts.draws} draws"
    if facts.verdict == "accept":
        return f"This looks like the data that the model was trained on, and {votes} read it as “{facts.name}”."
    if facts.verdict == "notice":
        if not decided:
            first = f"The model hesitates between “{facts.name}” and “{facts.second}”."
        elif facts.reach is not None and facts.reach >= DIFFERENT:
            first = f"This looks different from the training data, but {votes} still read it as “{facts.name}”."
        elif unlike:
            first = f"The model reads this as “{facts.name}”, but it is unlike most that it learned that from."
        else:
            first = f"The model is less sure than usual: {votes} read this as “{facts.name}”."
        return _joined(first, _place(facts.place))
    if outside:
        first = "This does not look like anything the model was trained on."
    elif unlike:
        first = f"The model would say “{facts.name}”, but this is unlike what it learned that from."
    else:
        first = f"The model cannot tell what this is: {votes} say “{facts.name}”, which may be chance."
    return _joined(first, _place(facts.place))


def share_below(quantiles: np.ndarray, score: float) -> float:
    """At least this share of the calibration scores is smaller: the largest step of the quantiles that says so.

    Kept quantiles have seven digits, so that the score of a calibration input may be a little above its own quantile; with
    as many digits the two are equal.
    """
    smaller = int(np.searchsorted(quantiles, seven_digits(score), side="left"))
    return max(0, smaller - 1) / (len(quantiles) - 1)


def outline(sorted_scores: np.ndarray | None, points: int = 101) -> list[float] | None:
    """Quantiles for a picture of the distribution, at most ``points`` of them."""
    if sorted_scores is None:
        return None
    if len(sorted_scores) <= points:
        return [seven_digits(value) for value in sorted_scores]
    return [seven_digits(value) for value in np.quantile(sorted_scores, np.linspace(0, 1, points))]


def finite(value: Any) -> float | None:
    """A threshold as JSON can hold it; not rounded, so that anyone can compare it with a score."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _place(place: float | None) -> str:
    if place is None:
        return ""
    if place >= 1:
        return "None of the good inputs used for calibration was as uncertain."
    if place >= 0.9:
        return f"At most {100 * (1 - place):.0f} % of the good inputs used for calibration were as uncertain."
    return ""


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _reach(prediction: Any) -> Sequence[float | None]:
    if prediction.distance is None or prediction.gate is None:
        return [None] * len(prediction)
    return outside(prediction.distance.float().cpu(), prediction.gate).tolist()


def _misfit(prediction: Any) -> Sequence[float | None]:
    if prediction.misfit is None or prediction.gate is None:
        return [None] * len(prediction)
    return unfit(prediction.own_misfit.float().cpu(), prediction.gate).tolist()


def _rounded(value: Any) -> float:
    return round(float(value), 6)
