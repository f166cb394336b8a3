"""Two thresholds on one score, and the verdicts that follow from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import ConfigDict
from pydantic import Field as Bounds

from abnn.decisions import Costs, TriageConfig, verdict_levels, verdicts
from abnn.errors import AbnnWarning, InputError, NotFittedError, explain
from abnn.files import only, parse
from abnn.triage.drift import Count, Counts, DriftMonitor, Floats, are_bins
from abnn.triage.intervals import Intervals

if TYPE_CHECKING:
    from torch import Tensor

    from abnn.predict import Prediction

FIX = "The file is damaged or was changed: restore it, or calibrate again."


@dataclass(frozen=True)
class Verdicts:
    """What to do with each prediction of a batch."""

    verdict: list[str]
    score: Tensor


Share = Annotated[float, Bounds(ge=0, le=1)]
Positive = Annotated[int, Bounds(ge=1, le=2**53)]
Quantiles = Annotated[
    Floats,
    only(lambda each: len(each) in (0, 101) and sorted(each) == list(each), "101 numbers that do not fall, or none"),
]
Reference = Annotated[
    tuple[Floats, Counts],
    only(lambda each: each == ((), ()) or are_bins(*each), "rising edges and one count more, or none"),
]


@dataclass(frozen=True)
class Triage:
    """Thresholds on one score, and how they were chosen.

    notice, reject     the thresholds
    noticed, rejected, confidence, costs   as in :class:`abnn.TriageConfig`. ``rejected`` is what can be promised; with
                       ``costs`` nothing is promised, and both are the shares on calibration data
    score, draws, seed of the predictions of calibration data
    drawn              how many samples these predictions had, whatever ``draws`` is; None: not known
    views              how many views of each image they had; None: not known
    inputs             how many good inputs there were
    calibration        0 %, 1 %, ..., 100 % quantiles of the good scores, to show where a score lies among them
    by_class           (notice, reject) of each predicted class, in place of the common thresholds; (): not per class
    reference          edges and counts that a drift monitor starts from, see :meth:`monitor`
    temperature        of :meth:`probabilities`, see :mod:`abnn.triage.statements`; 1: as the model gives them
    offsets            of rare classes, see there, one for each class; (): none
    intervals          of a regression: widths that come true, see there; None: for other tasks
    """

    notice: float
    reject: float
    noticed: Share
    rejected: Share
    score: str
    draws: Annotated[int, Bounds(ge=0, le=2**53)]
    seed: int
    inputs: Count
    calibration: Quantiles = field(default=(), repr=False)
    confidence: Share | None = None
    by_class: tuple[tuple[float, float], ...] = ()
    costs: Costs | None = None
    reference: Reference = field(default=((), ()), repr=False)
    drawn: Positive | None = None
    temperature: Annotated[float, Bounds(gt=0)] = 1.0
    views: Positive | None = None
    intervals: Intervals | None = field(default=None, repr=False)
    offsets: Floats = field(default=(), repr=False)

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(explain("temperature", self.temperature, "a positive number"))
        for notice, reject in ((self.notice, self.reject), *self.by_class):
            if not (math.isfinite(notice) and math.isfinite(reject) and notice <= reject):
                raise InputError(explain("notice, reject", f"{notice}, {reject}", "finite numbers, notice <= reject"))

    @staticmethod
    def calibrate(model: Any, loader: Iterable[Any], *, outliers: Any = "auto", **settings: Any) -> Triage:
        """Return the thresholds of :func:`abnn.triage.calibrate`, without a bar.

        settings  fields of ``TriageConfig``
        """
        from abnn.triage.calibrate import calibrate

        return calibrate(model, loader, TriageConfig(**settings), outliers, progress=False)

    def __call__(self, prediction: Prediction) -> Verdicts:
        """Return the verdicts on a prediction. Warn where it has other draws or views than those of calibration."""
        if not hasattr(prediction, "score_by"):
            name = type(prediction).__name__
            raise InputError(explain("prediction", name, "what model.predict(x) returns", "triage(model.predict(x))."))
        score = prediction.score_by(self.score)
        self.check_numbers(prediction)
        return Verdicts(verdicts(score, *self.levels_of(prediction).unbind(1)), score)

    def probabilities(self, prediction: Prediction) -> Tensor:
        """Return the averaged prediction, made to come true on calibration data, [B, K]; the most probable class stays.

        Of inputs that are not accepted, nobody knows how often a prediction is right. There the result is never surer
        than the network itself.
        """
        import torch  # only here: exported models have thresholds and no torch

        from abnn.triage.statements import no_surer, rescale, state_labels

        accepted = prediction.score_by(self.score) <= self.levels_of(prediction)[:, 0]  # as in verdicts()
        if prediction.distribution == "labels":
            return state_labels(prediction, accepted, self.temperature)
        if self.offsets and len(self.offsets) != prediction.probs.shape[1]:
            actual = f"{prediction.probs.shape[1]} classes"
            raise InputError(explain("prediction", actual, f"{len(self.offsets)}, as calibrated"))
        stated = rescale(prediction.probs, self.temperature, self.offsets)
        return torch.where(accepted[:, None], stated, no_surer(stated, prediction.plain))

    def levels_of(self, prediction: Prediction) -> Tensor:
        """Return the thresholds of notice and reject for each input, [B, 2], in the score's type.

        This is exported: so nothing leaves the device, and the number of inputs stays open.
        """
        score = prediction.score_by(self.score)
        if not self.by_class:
            return score.new_tensor([[self.notice, self.reject]]).expand(score.shape[0], 2)
        self._check_classes(prediction.samples.shape[2])
        return score.new_tensor(self.by_class)[prediction.label]

    def levels(self, scores: np.ndarray, predicted: np.ndarray | None = None) -> np.ndarray:
        """Return the verdicts on scores, as indices into ``VERDICTS``. With ``by_class``, ``predicted`` is needed."""
        if not self.by_class:
            return verdict_levels(scores, self.notice, self.reject)
        if predicted is None:
            raise InputError(explain("predicted", "None", "the predicted classes, as thresholds differ by class"))
        self._check_classes(int(predicted.max(initial=0)) + 1)
        return verdict_levels(scores, *np.array(self.by_class)[predicted].T)

    def monitor(self, alarm: float = 0.01, seed: int = 0) -> DriftMonitor:
        """Return a monitor that tells whether scores still look like those of calibration."""
        edges, counts = self.reference
        if not counts:
            raise NotFittedError(
                "triage: it keeps no scores to compare with, because it was calibrated on too few inputs or by an "
                "older version; calibrate it again with more, or use DriftMonitor.from_scores()."
            )
        return DriftMonitor(edges, counts, alarm=alarm, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, as JSON can hold them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Triage:
        """Return the Triage of :meth:`to_dict`, also after a way through JSON. Missing fields get their defaults."""
        return parse(cls, values, "triage.", FIX)

    def is_about(self, prediction: Prediction) -> bool:
        """Return whether the thresholds belong to the score, draws and views of a prediction."""
        return prediction.default == self.score and self._other_number(prediction) is None

    def add_to(self, prediction: Prediction) -> Prediction:
        """Return a prediction with these thresholds, and so with verdicts; unchanged where they do not belong to it."""
        return replace(prediction, triage=self) if self.is_about(prediction) else prediction

    def check_numbers(self, prediction: Prediction) -> None:
        """Warn where a prediction has another number of draws or views than those of calibration."""
        if (other := self._other_number(prediction)) is not None:
            name, number, calibrated = other
            what = {"draws": "samples", "views": "views"}[name]
            accepted = f"{calibrated}, as calibrated; the promised shares of verdicts do not hold for another number"
            fix = f"Predict with {name}={getattr(self, name)}, or calibrate again."
            warnings.warn(explain("prediction", f"{number} {what}", accepted, fix), AbnnWarning, stacklevel=3)

    def _other_number(self, prediction: Prediction) -> tuple[str, int, int] | None:
        """Return "draws" or "views", its number here and in calibration, where these differ; None where all agree."""
        numbers = (("draws", len(prediction.samples), self.drawn), ("views", prediction.views, self.views))
        for name, number, calibrated in numbers:
            if number is not None and calibrated is not None and number != calibrated:
                return name, number, calibrated
        return None

    def _check_classes(self, classes: int) -> None:
        if classes > len(self.by_class):
            raise InputError(explain("prediction", f"{classes} classes", f"{len(self.by_class)}, as calibrated"))
