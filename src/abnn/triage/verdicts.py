"""Two thresholds on one score, and the verdicts that follow from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import MISSING, Field, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abnn.errors import AbnnWarning, FileFormatError, InputError, NotFittedError, explain
from abnn.outliers import DEFAULT, Outliers
from abnn.predict.prediction import Plain, Prediction
from abnn.triage.stored import check_stored
from abnn.triage.temperature import rescale
from abnn.triage.thresholds import Costs

if TYPE_CHECKING:
    from abnn.model.attached import Attached
    from abnn.triage.drift import DriftMonitor

VERDICTS = ("accept", "notice", "reject")
PLURALS = ("accepted", "noticed", "rejected")


@dataclass(frozen=True)
class Verdicts:
    """What to do with each prediction of a batch."""

    verdict: list[str]
    score: torch.Tensor


@dataclass(frozen=True)
class Triage:
    """Thresholds on one score.

    notice, reject  the thresholds
    noticed         promised for good inputs: at most this share is not accepted, on average over calibration sets
    rejected        likewise: at most this share is refused
    score           the score that the thresholds belong to
    draws, seed     asked for in the predictions that they were calibrated on
    drawn           how many draws these had: those of a network without randomness have one whatever is asked for.
                    None: not known
    views           how many views of each image they looked at. None: not known
    inputs          how many good inputs they were calibrated on
    calibration     0 %, 1 %, ..., 100 % quantiles of the good scores, to show where a score lies among them
    confidence      if given, the promise holds with this probability over calibration sets, not only on average
    by_class        (notice, reject) for each predicted class in the place of the common thresholds; () if not asked for
    costs           the costs that chose the thresholds. Then ``noticed`` and ``rejected`` promise nothing: they are the
                    shares that were seen on calibration data
    reference       edges and counts that a drift monitor starts from, see :meth:`monitor`
    temperature     of :meth:`probabilities`, see :mod:`abnn.triage.temperature`; 1: as the model gives them
    """

    notice: float
    reject: float
    noticed: float
    rejected: float
    score: str
    draws: int
    seed: int
    inputs: int
    calibration: tuple[float, ...] = field(default=(), repr=False)
    confidence: float | None = None
    by_class: tuple[tuple[float, float], ...] = ()
    costs: Costs | None = None
    reference: tuple[tuple[float, ...], tuple[int, ...]] = field(default=((), ()), repr=False)
    drawn: int | None = None
    temperature: float = 1.0
    views: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise InputError(explain("temperature", self.temperature, "a positive number"))
        for notice, reject in ((self.notice, self.reject), *self.by_class):
            if not (math.isfinite(notice) and math.isfinite(reject) and notice <= reject):
                raise InputError(explain("notice, reject", f"{notice}, {reject}", "finite numbers, notice <= reject"))

    @classmethod
    def calibrate(
        cls,
        model: Attached | Plain,
        loader: Iterable[Any],
        noticed: float = 0.05,
        rejected: float = 0.01,
        outliers: str | Outliers | Any = DEFAULT,
        draws: int = 10,
        seed: int = 0,
        *,
        confidence: float | None = None,
        per_class: bool = False,
        costs: Costs | None = None,
        score: str | None = None,
        value_range: tuple[Any, Any] | None = None,
    ) -> Triage:
        """Choose both thresholds with held-out good data that the model was not fitted on.

        ``notice`` is the conformal quantile of the good scores. ``reject`` is where outliers with their content destroyed
        (severity above one half) separate best from the rest, good data and mild outliers, but never below the conformal
        quantile for ``rejected``.

        loader      yields (x, y) every time it is iterated; it is read more than once
        outliers    made from the good data, or a data set of real ones
        confidence  None: the promise holds on average over calibration sets. 0.95: it holds for 95 % of them, which
                    takes a somewhat higher threshold
        per_class   thresholds for each predicted class, so that the promise holds within each of them
        costs       choose both thresholds by the least expected cost instead; nothing is promised then
        score       which score to put thresholds on; None: the model's own
        value_range (low, high) of the inputs, for made-up outliers; None: that of ``outliers`` if its prepare() set one,
                    else measured from ``loader``
        """
        from abnn.triage.calibrate import check_choice, choose, gather

        check_choice(noticed, rejected, confidence, per_class, costs)
        gathered = gather(model, loader, outliers, draws, seed, score, value_range)
        return choose(gathered, noticed, rejected, confidence=confidence, per_class=per_class, costs=costs)

    def __call__(self, prediction: Prediction) -> Verdicts:
        if not isinstance(prediction, Prediction):
            given = type(prediction).__name__
            raise InputError(explain("prediction", given, "what model.predict(x) returns", "triage(model.predict(x))."))
        score = prediction.score_by(self.score)
        self.check_numbers(prediction)
        notice: Any = self.notice
        reject: Any = self.reject
        if self.by_class:
            limits = torch.tensor(self.by_class, dtype=torch.float64, device=score.device).to(score.dtype)
            self._check_classes(prediction.samples.shape[2])
            notice, reject = limits[prediction.label].unbind(1)
        levels = 2 - (score <= notice).int() - (score <= reject).int()  # so that NaN is refused
        return Verdicts([VERDICTS[level] for level in levels.tolist()], score)

    def probabilities(self, prediction: Prediction) -> torch.Tensor:
        """[B, K]: the averaged prediction, made to come true on calibration data; the most probable class is the same."""
        return rescale(prediction.probs, self.temperature)

    def levels(self, scores: np.ndarray, predicted: np.ndarray | None = None) -> np.ndarray:
        """Numbers into ``VERDICTS`` for scores that are at hand already; with ``by_class`` the predicted classes decide."""
        notice: Any = self.notice
        reject: Any = self.reject
        if self.by_class:
            if predicted is None:
                raise InputError(explain("predicted", "None", "the predicted classes, as thresholds differ by class"))
            self._check_classes(int(predicted.max(initial=0)) + 1)
            notice, reject = np.array(self.by_class, scores.dtype)[predicted].T
        return 2 - (scores <= notice).astype(np.int64) - (scores <= reject)

    def thresholds(self, label: int | None = None) -> tuple[float, float]:
        """(notice, reject) for a predicted class."""
        if self.by_class and label is not None:
            self._check_classes(label + 1)
            return self.by_class[label]
        return self.notice, self.reject

    def position(self, score: float) -> float:
        """Roughly which share of good calibration inputs had a score of at most this one, from the kept quantiles."""
        if not self.calibration:
            raise NotFittedError("triage: saved without calibration quantiles by an older version; calibrate it again.")
        return min(100, int(np.searchsorted(self.calibration, score, side="right"))) / 100

    def monitor(self, alarm: float = 0.01, seed: int = 0) -> DriftMonitor:
        """A monitor of whether scores still look like those of calibration; see :class:`abnn.triage.drift.DriftMonitor`."""
        from abnn.triage.drift import DriftMonitor

        edges, counts = self.reference
        if not counts:
            raise NotFittedError(
                "triage: it keeps no scores to compare with, because it was calibrated on too few inputs or by an older "
                "version; calibrate it again with more, or use DriftMonitor.from_scores()."
            )
        return DriftMonitor(edges, counts, alarm=alarm, seed=seed)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Triage:
        """What :meth:`to_dict` gave, also after a way through JSON; fields that older versions lack get their defaults."""
        known = {each.name for each in fields(cls)}
        if foreign := sorted(values.keys() - known):
            raise FileFormatError(
                f"triage: unknown fields {', '.join(foreign)}; written by a newer version? Update abnn."
            )
        if missing := [each.name for each in fields(cls) if _is_needed(each) and each.name not in values]:
            raise FileFormatError(
                f"triage: the fields {', '.join(missing)} are missing; restore it, or calibrate again."
            )
        values = {name: _tuples(value) for name, value in values.items()}
        check_stored(values)
        if values.get("costs") is not None:
            values["costs"] = Costs(**{key: _tuples(value) for key, value in values["costs"].items()})
        return cls(**values)

    def check_numbers(self, prediction: Prediction) -> None:
        """Warn where a prediction has other numbers of draws or views than those that thresholds were chosen for."""
        drawn, views = len(prediction.samples), prediction.views
        if self.drawn not in (None, drawn):
            given, wanted, fix = f"{drawn} draws", self.drawn, f"draws={self.draws}"
        elif views is not None and self.views not in (None, views):
            given, wanted, fix = f"{views} views", self.views, f"views={self.views}"
        else:
            return
        accepted = f"{wanted}, as calibrated; the promised shares of verdicts do not hold for another number"
        message = explain("prediction", given, accepted, f"Predict with {fix}, or calibrate again.")
        warnings.warn(message, AbnnWarning, stacklevel=3)

    def _check_classes(self, classes: int) -> None:
        if classes > len(self.by_class):
            raise InputError(explain("prediction", f"{classes} classes", f"{len(self.by_class)}, as calibrated"))


def _is_needed(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list | tuple) else value
