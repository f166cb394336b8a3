"""From score to decision: two thresholds, three verdicts, and what they promise.

accept   score <= notice              use the prediction
notice   notice < score <= reject     use it with a warning
reject   score > reject               do not use it
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from abnn.errors import InputError, explain
from abnn.outliers import Outliers, make_outliers, measure_range
from abnn.predict import Plain, Prediction

if TYPE_CHECKING:
    from abnn.attached import Attached

VERDICTS = ("accept", "notice", "reject")


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
    draws, seed     of the predictions that they were calibrated on
    inputs          how many good inputs they were calibrated on
    """

    notice: float
    reject: float
    noticed: float
    rejected: float
    score: str
    draws: int
    seed: int
    inputs: int

    @classmethod
    def calibrate(
        cls,
        model: Attached | Plain,
        loader: Iterable[Any],
        noticed: float = 0.05,
        rejected: float = 0.01,
        outliers: str | Outliers | Any = "auto",
        draws: int = 10,
        seed: int = 0,
    ) -> Triage:
        """Choose both thresholds with held-out good data that the model was not fitted on.

        ``notice`` is the conformal quantile of the good scores. ``reject`` is where outliers with their content destroyed
        (severity above one half) separate best from the rest, good data and mild outliers, but never below the conformal
        quantile for ``rejected``. ``outliers`` are made from the good data, or are a data set of real ones.
        """
        from abnn.loop import check_batch

        batches = [check_batch(model, batch) for batch in loader]
        if not batches:
            raise InputError(explain("loader", "a loader without batches", "held-out (x, y) batches"))
        good = [model.predict(x, draws=draws, seed=seed) for x, _ in batches]
        scores = np.concatenate([part.score.cpu().numpy() for part in good])
        notice = conformal_quantile(scores, noticed)
        floor = max(notice, conformal_quantile(scores, rejected, strict=False))
        maker = make_outliers(outliers)
        if maker.needs_range:
            maker.prepare(*measure_range(x for x, _ in batches))
        generator = torch.Generator().manual_seed(seed)
        mild, severe = [scores], []
        for x, y in batches:
            made = maker(x, y, generator)
            made_scores = model.predict(made.x, draws=draws, seed=seed).score.cpu().numpy()
            far = made.severity.cpu().numpy() > 0.5
            mild.append(made_scores[~far])
            severe.append(made_scores[far])
        reject = max(floor, best_split(np.concatenate(mild), np.concatenate(severe)))
        return cls(float(notice), float(reject), noticed, rejected, good[0].default, draws, seed, len(scores))

    def __call__(self, prediction: Prediction) -> Verdicts:
        score = prediction.score_by(self.score)
        levels = (score > self.notice).int() + (score > self.reject).int()
        return Verdicts([VERDICTS[level] for level in levels.tolist()], score)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Triage:
        return cls(**values)


def conformal_quantile(scores: np.ndarray, share: float, strict: bool = True) -> float:
    """The k-th smallest score, k = ceil((n + 1)(1 - share)): a new good input lies above it with probability <= share.

    Holds for every n, over the random choice of calibration set and input (Vovk et al. 2005; Papadopoulos et al. 2002).
    With fewer than 1/share - 1 scores no such value exists: an error, or the largest score if not ``strict``.
    """
    if not 0 < share < 1:
        raise InputError(explain("share of good inputs", share, "a number between 0 and 1"))
    count = len(scores)
    rank = math.ceil((count + 1) * (1 - share) - 1e-9)
    if rank > count:
        if strict:
            needed = math.ceil(1 / share) - 1
            raise InputError(
                explain(
                    "loader", f"{count} good inputs", f"at least {needed} to promise {share:.1%}", "Hold out more data."
                )
            )
        rank = count
    return float(np.sort(scores)[rank - 1])


def best_split(low: np.ndarray, high: np.ndarray) -> float:
    """The threshold t that maximises 1/2 [P(low <= t) + P(high > t)]; the smallest such score."""
    candidates = np.unique(np.concatenate([low, high]))
    kept = np.searchsorted(np.sort(low), candidates, side="right") / max(1, len(low))
    caught = 1 - np.searchsorted(np.sort(high), candidates, side="right") / max(1, len(high))
    return float(candidates[np.argmax(kept + caught)])
