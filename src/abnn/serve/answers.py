"""From predictions to answers: numbers for programs, and sentences for people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.store.saved import class_names_of
from abnn.triage.calibrate import seven_digits


class Answerer:
    """A model with its thresholds: inputs [B, ...] to one answer for each, in the form of :class:`abnn.serve.schema.Answer`."""

    def __init__(self, model: Any) -> None:
        if getattr(model, "triage", None) is None:
            fix = "Choose thresholds with abnn.calibrate(model, held_out), then save it again."
            raise InputError(explain("model", "a model without thresholds", "a model saved with its triage", fix))
        self.model, self.triage = model, model.triage
        self.names = class_names_of(model) or [str(number) for number in range(model.classes)]

    def __call__(self, x: Tensor) -> list[dict[str, Any]]:
        prediction = self.model.predict(x, draws=self.triage.draws, seed=self.triage.seed)
        verdicts = self.triage(prediction)
        samples, scores = prediction.samples.float().cpu(), verdicts.score.float().cpu()
        if not (torch.isfinite(samples).all() and torch.isfinite(scores).all()):
            raise FloatingPointError("the model gave NaN or infinite values")
        probs = self.triage.probabilities(prediction).float().cpu().numpy()
        rows = zip(samples.transpose(0, 1).numpy(), probs, scores.tolist(), verdicts.verdict)
        return [self._describe(*row) for row in rows]

    def _describe(self, samples: np.ndarray, probs: np.ndarray, score: float, verdict: str) -> dict[str, Any]:
        label, second = np.argsort(-probs, kind="stable")[:2].tolist()
        of_label, labels = samples[:, label], samples.argmax(1)
        place = share_below(self.triage.calibration, score) if self.triage.calibration else None
        agreeing, draws, probability = int((labels == label).sum()), len(samples), float(probs[label])
        triage = self.triage
        notice, reject = triage.by_class[label] if triage.by_class else (triage.notice, triage.reject)
        return {
            "label": label,
            "class_name": self.names[label],
            "probability": round(probability, 6),
            "probabilities": _rounded(probs),
            "score": score,
            "verdict": verdict,
            "reason": reason(verdict, self.names[label], self.names[second], probability, agreeing, draws, place),
            "thresholds": {"notice": notice, "reject": reject},
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
    verdict: str, name: str, second: str, probability: float, agreeing: int, draws: int, place: float | None
) -> str:
    """Return why the verdict is what it is, in one or two sentences without technical words.

    name, second     the most probable class, and the next one
    agreeing, draws  how many draws name the predicted class on their own, and how many there are
    place            at least this share of the calibration scores lies below, 1 if all do; None: not known
    """
    votes = f"all {draws} draws" if agreeing == draws else f"{agreeing} of {draws} draws"
    votes = "the model" if draws == 1 else votes
    say, read = ("says", "reads") if draws == 1 else ("say", "read")
    if verdict == "accept":
        return f"This looks like the data that the model was trained on, and {votes} {read} it as “{name}”."
    if verdict == "notice" and probability < 0.5:
        first = f"The model hesitates between “{name}” and “{second}”."
    elif verdict == "notice":
        first = f"The model is less sure than usual: {votes} {read} this as “{name}”."
    elif probability < 0.5:
        first = f"The model cannot tell what this is: {votes} {say} “{name}”, which may be chance."
    else:
        first = f"This does not look like what the model was trained on, though {votes} {say} “{name}”."
    if place is None or place < 0.9:
        return first
    share = "None" if place >= 1 else f"At most {100 * (1 - place):.0f} %"
    return f"{first} {share} of the good inputs used for calibration {'was' if place >= 1 else 'were'} as uncertain."


def share_below(quantiles: Sequence[float], score: float) -> float:
    """Return the largest share that the quantiles vouch for: at least so many calibration scores are smaller.

    Kept quantiles have seven digits, so that the score of a calibration input may be a little above its own quantile; with
    as many digits the two are equal.
    """
    return max(0, bisect_left(quantiles, seven_digits(score)) - 1) / (len(quantiles) - 1)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(value, 6) for value in values.astype(float).tolist()]
