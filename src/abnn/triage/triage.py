"""Two thresholds on one score, and the verdicts that follow from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import AfterValidator, ConfigDict
from pydantic import Field as Bounds

from abnn.config import Costs, TriageConfig
from abnn.errors import AbnnWarning, InputError, NotFittedError, explain
from abnn.files import parse
from abnn.predict import Prediction
from abnn.predict.verdicts import verdict_levels, verdicts
from abnn.triage.drift import Count, Counts, DriftMonitor, Floats
from abnn.triage.temperature import rescale

FIX = "The file is damaged or was changed: restore it, or calibrate again."


@dataclass(frozen=True)
class Verdicts:
    """What to do with each prediction of a batch."""

    verdict: list[str]
    score: torch.Tensor


def _check_quantiles(values: Floats) -> Floats:
    if len(values) not in (0, 101) or sorted(values) != list(values):
        raise ValueError("101 numbers that do not fall, or none")
    return values


def _check_reference(value: tuple[Floats, Counts]) -> tuple[Floats, Counts]:
    edges, counts = value
    if sorted(set(edges)) != list(edges) or len(counts) != len(edges) + bool(edges or counts):
        raise ValueError("rising edges and one count more, or none of both")
    return value


Share = Annotated[float, Bounds(ge=0, le=1)]
Positive = Annotated[int, Bounds(ge=1, le=2**53)]


@dataclass(frozen=True)
class Triage:
    """Thresholds on one score.

    notice, reject  the thresholds
    noticed         promised for good inputs: at most this share is not accepted, on average over calibration sets
    rejected        likewise: at most this share is refused
    score           the score that the thresholds belong to
    draws, seed     asked for in the predictions that they were calibrated on
    inputs          how many good inputs they were calibrated on
    calibration     0 %, 1 %, ..., 100 % quantiles of the good scores, to show where a score lies among them
    confidence      if given, the promise holds with this probability over calibration sets, not only on average
    by_class        (notice, reject) for each predicted class in the place of the common thresholds; () if not asked for
    costs           the costs that chose the thresholds. Then ``noticed`` and ``rejected`` promise nothing: they are the
                    shares that were seen on calibration data
    reference       edges and counts that a drift monitor starts from, see :meth:`monitor`
    drawn           how many draws predictions had: those of a network without randomness have one whatever is asked for.
                    None: not known
    temperature     of :meth:`probabilities`, see :mod:`abnn.triage.temperature`; 1: as the model gives them
    views           how many views of each image predictions looked at. None: not known
    """

    notice: float
    reject: float
    noticed: Share
    rejected: Share
    score: str
    draws: Annotated[int, Bounds(ge=0, le=2**53)]
    seed: int
    inputs: Count
    calibration: Annotated[Floats, AfterValidator(_check_quantiles)] = field(default=(), repr=False)
    confidence: Share | None = None
    by_class: tuple[tuple[float, float], ...] = ()
    costs: Costs | None = None
    reference: Annotated[tuple[Floats, Counts], AfterValidator(_check_reference)] = field(default=((), ()), repr=False)
    drawn: Positive | None = None
    temperature: Annotated[float, Bounds(gt=0)] = 1.0
    views: Positive | None = None

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(explain("temperature", self.temperature, "a positive number"))
        for notice, reject in ((self.notice, self.reject), *self.by_class):
            if not (math.isfinite(notice) and math.isfinite(reject) and notice <= reject):
                raise InputError(explain("notice, reject", f"{notice}, {reject}", "finite numbers, notice <= reject"))

    @staticmethod
    def calibrate(
        model: Any, loader: Iterable[Any], *, outliers: Any = "auto", value_range: Any = None, **settings: Any
    ) -> Triage:
        """Return what :func:`abnn.triage.calibrate` does, without a bar; ``settings`` are fields of ``TriageConfig``."""
        from abnn.triage.calibrate import calibrate

        return calibrate(model, loader, TriageConfig(**settings), outliers, value_range, progress=False)

    def __call__(self, prediction: Prediction) -> Verdicts:
        """Return the verdicts of what ``model.predict(x)`` gave; warn where it has other draws or views than calibration."""
        if not isinstance(prediction, Prediction):
            name = type(prediction).__name__
            raise InputError(explain("prediction", name, "what model.predict(x) returns", "triage(model.predict(x))."))
        score = prediction.score_by(self.score)
        self.check_numbers(prediction)
        if self.by_class:
            self._check_classes(prediction.samples.shape[2])
        return Verdicts(verdicts(score, *self._limits(prediction.label.cpu().numpy())), score)

    def probabilities(self, prediction: Prediction) -> torch.Tensor:
        """Return the averaged prediction, made to come true on calibration data, [B, K]; the most probable class stays."""
        return rescale(prediction.probs, self.temperature)

    def levels(self, scores: np.ndarray, predicted: np.ndarray | None = None) -> np.ndarray:
        """Return numbers into ``VERDICTS`` for scores that are at hand; with ``by_class`` the predicted classes decide."""
        if self.by_class:
            if predicted is None:
                raise InputError(explain("predicted", "None", "the predicted classes, as thresholds differ by class"))
            self._check_classes(int(predicted.max(initial=0)) + 1)
        return verdict_levels(scores, *self._limits(predicted))

    def monitor(self, alarm: float = 0.01, seed: int = 0) -> DriftMonitor:
        """Return a monitor of whether scores still look like those of calibration."""
        edges, counts = self.reference
        if not counts:
            raise NotFittedError(
                "triage: it keeps no scores to compare with, because it was calibrated on too few inputs or by an older "
                "version; calibrate it again with more, or use DriftMonitor.from_scores()."
            )
        return DriftMonitor(edges, counts, alarm=alarm, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Triage:
        """Return the Triage of :meth:`to_dict`, also after a way through JSON; fields that older versions lack get defaults."""
        return parse(cls, values, "triage.", FIX)

    def is_about(self, prediction: Prediction) -> bool:
        """Return whether the thresholds are of the score, draws and views that a prediction has."""
        draws, views = len(prediction.samples), prediction.views
        same_views = views is None or self.views in (None, views)
        return prediction.default == self.score and self.drawn in (None, draws) and same_views

    def check_numbers(self, prediction: Prediction) -> None:
        """Warn where a prediction has other numbers of draws or views than those that thresholds were chosen for."""
        drawn, views = len(prediction.samples), prediction.views
        if self.drawn not in (None, drawn):
            numbers, calibrated, fix = f"{drawn} draws", self.drawn, f"draws={self.draws}"
        elif views is not None and self.views not in (None, views):
            numbers, calibrated, fix = f"{views} views", self.views, f"views={self.views}"
        else:
            return
        accepted = f"{calibrated}, as calibrated; the promised shares of verdicts do not hold for another number"
        message = explain("prediction", numbers, accepted, f"Predict with {fix}, or calibrate again.")
        warnings.warn(message, AbnnWarning, stacklevel=3)

    def _limits(self, predicted: np.ndarray | None) -> tuple[Any, Any]:
        if not self.by_class:
            return self.notice, self.reject
        notice, reject = np.array(self.by_class)[predicted].T
        return notice, reject

    def _check_classes(self, classes: int) -> None:
        if classes > len(self.by_class):
            raise InputError(explain("prediction", f"{classes} classes", f"{len(self.by_class)}, as calibrated"))
