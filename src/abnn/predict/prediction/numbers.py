"""Predictions of real numbers: a Gaussian for each, and intervals with a promised coverage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from abnn.decisions import check_promise
from abnn.errors import InputError, NotFittedError, explain
from abnn.predict.prediction.classes import Prediction

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class NumberPrediction(Prediction):
    """A prediction for a batch with D real numbers for each input.

    samples    the mean of every draw, [S, B, D], the plain network's first
    centre     the predicted numbers, [B, D], if a fit has learnt how much attachments count; None: the mean over the
               draws
    noise      standard deviation of targets around the best possible prediction, [B, D]
    unknown    standard deviation of the prediction itself, because the data are limited, [B, D]
    """

    distribution: ClassVar[str] = "numbers"
    TENSORS: ClassVar[tuple[str, ...]] = ("combined", "share", "centre", "noise", "unknown")

    centre: Tensor | None = None
    noise: Tensor | None = None
    unknown: Tensor | None = None

    @classmethod
    def of_pass(
        cls, samples: Tensor, judgement: Tensor | None, names: Sequence[str], default: str, views: int | None
    ) -> Prediction:
        prediction = super().of_pass(samples, judgement, names, default, views)
        if judgement is None:
            return prediction
        centre, noise, unknown = judgement[:, 1 + len(names) :].chunk(3, dim=1)
        return replace(prediction, share=None, centre=centre, noise=noise, unknown=unknown)  # type: ignore[call-arg]

    @property
    def mean(self) -> Tensor:
        """The predicted numbers, [B, D]."""
        return self.samples.mean(0) if self.centre is None else self.centre

    @property
    def plain(self) -> Tensor:
        """The prediction of the network without attachments, [B, D]."""
        return self.samples[0]

    @property
    def aleatoric(self) -> Tensor:
        """The noise of the targets, as standard deviations, [B, D]."""
        noise, _ = self._widths()
        return noise * self._factor()

    @property
    def epistemic(self) -> Tensor:
        """What more data would reduce, as standard deviations, [B, D]: of the closed form and between draws."""
        _, unknown = self._widths()
        return (unknown.square() + self.samples.var(0, correction=0)).sqrt() * self._factor()

    @property
    def std(self) -> Tensor:
        """The standard deviation of the predictive distribution, [B, D]: aleatoric and epistemic part together."""
        return (self.aleatoric.square() + self.epistemic.square()).sqrt()

    def interval(self, coverage: float = 0.9) -> tuple[Tensor, Tensor]:
        """Return lower and upper ends, [B, D] each, between which a target lies with probability ``coverage``.

        After abnn.calibrate() that holds for any distribution, on average over calibration sets and for inputs like the
        calibration data (split-conformal prediction). Before, it holds only if the predictive distribution is right.
        """
        check_promise("coverage", coverage)
        if self.triage is not None:
            half = self.std * self.std.new_tensor(self.triage.intervals.quantiles(coverage))
        else:
            half = self.std * NormalDist().inv_cdf((1 + coverage) / 2)
        return self.mean - half, self.mean + half

    def _widths(self) -> tuple[Tensor, Tensor]:
        """Return ``noise`` and ``unknown``, or raise an error if no fit has learnt them."""
        if self.noise is None or self.unknown is None:
            raise NotFittedError("std: this model knows no widths yet; abnn.fit(model, loader) learns them.")
        return self.noise, self.unknown

    def _factor(self) -> Tensor | float:
        """Return the factor by which calibration widens the predictive distribution of each input."""
        return 1.0 if self.triage is None else self.triage.intervals.factor(self.log_variance(), self.distances())

    def log_variance(self) -> Tensor:
        """Return ln of the predictive variance before calibration, [B, D]."""
        noise, unknown = self._widths()
        return (noise.square() + unknown.square() + self.samples.var(0, correction=0)).log()

    def distances(self) -> Tensor:
        """Return how unusual the features are at each place, [B, P]."""
        assert self.parts is not None
        return torch.stack([part for name, part in self.parts.items() if name.startswith("distance at ")], dim=1)

    @property
    def stated(self) -> Tensor | None:  # type: ignore[override]
        raise _no_classes("stated")

    @property
    def probs(self) -> Tensor:
        raise _no_classes("probs")

    @property
    def label(self) -> Tensor:
        raise _no_classes("label")

    def to_pandas(self, class_names: Sequence[str] | None = None) -> pandas.DataFrame:
        """Return a table with a row for each input: mean, score, verdict, and after a fit std and 90 % interval.

        class_names  names of the numbers, if there are several; None: their positions
        """
        count = self.samples.shape[2]
        names = self._names(class_names, count)
        ends = ["" if count == 1 and class_names is None else f"({name})" for name in names]
        values: dict[str, Tensor] = {}
        if self.noise is not None:
            low, high = self.interval(0.9)
            parts = {"aleatoric": self.aleatoric, "epistemic": self.epistemic}
            values = {"std": self.std, **parts, "low": low, "high": high}

        def columns(name: str, value: Tensor) -> dict[str, Any]:
            return {f"{name}{end}": value[:, place].cpu().numpy() for place, end in enumerate(ends)}

        rest = {key: column for name, value in values.items() for key, column in columns(name, value).items()}
        return self._table(columns("mean", self.mean), rest)


def _no_classes(what: str) -> InputError:
    fix = "Evaluation and serving are for classes."
    return InputError(explain(what, "the prediction of a regression", "mean, std and interval(0.9)", fix))
