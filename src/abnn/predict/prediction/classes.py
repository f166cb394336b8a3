"""Predictions of one class for each input, and what all kinds of predictions share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from abnn.decisions import verdicts
from abnn.errors import InputError, NotFittedError, explain, import_extra
from abnn.scores import find_score

if TYPE_CHECKING:
    import pandas


PREDICTIONS: dict[str, type[Prediction]] = {}
"""The prediction class for each kind of predictive distribution. Subclasses of :class:`Prediction` add themselves."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """A prediction for a batch in which each input belongs to one class.

    samples   class probabilities of every draw, [S, B, K]. With bounded attachments the plain network's come first:
              [plain, attached] with mean weights, [plain, one for each view] with views too, [plain, draw 1, ..., draw
              n] with draws
    combined  the learnt score, [B]; None: no fit has learnt it
    parts     the parts of the learnt score by name, each [B]: 0 is usual, 1 as far above that as one ordinary input in
              six
    default   name of the score that ``score`` shows
    share     weight of the attached prediction in ``probs``, 0 to 1, [B], with one draw or mean weights; None: all
              draws count alike
    own       scores that only this method has, by name, each [B], larger = more uncertain
    views     number of views of each image; None: not known
    triage    thresholds for predictions of this kind; None: the model is not calibrated for them
    """

    distribution: ClassVar[str] = "classes"
    TENSORS: ClassVar[tuple[str, ...]] = ("combined", "share")

    samples: Tensor
    combined: Tensor | None = None
    parts: Mapping[str, Tensor] | None = None
    default: str = "entropy"
    own: Mapping[str, Tensor] = field(default_factory=dict)
    views: int | None = None
    triage: Any = None
    share: Tensor | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        PREDICTIONS[cls.distribution] = cls

    @classmethod
    def of_pass(
        cls, samples: Tensor, judgement: Tensor | None, names: Sequence[str], default: str, views: int | None
    ) -> Prediction:
        """Return a prediction from ``samples`` and the result of :func:`abnn.predict.passes.judge`.

        names  of the parts of the score
        """
        if judgement is None:
            return cls(samples, default=default, views=views)
        parts = dict(zip(names, judgement[:, 1:].unbind(1)))
        return cls(samples, judgement[:, 0], parts, default, views=views, share=judgement[:, 1 + len(names)])

    @property
    def probs(self) -> Tensor:
        """Predicted class probabilities, [B, K]: the mean over the draws.

        With one draw or mean weights, ``share`` is the weight of the attached prediction: 0 where an input looks
        ordinary.
        """
        if self.share is None or len(self.samples) != 2:
            return self.samples.mean(0)
        plain, attached = self.samples
        return torch.lerp(plain, attached, self.share[:, None])

    @property
    def plain(self) -> Tensor:
        """The prediction of the network without attachments, [B, K]; if it is not known, ``probs``."""
        return self.probs if self.combined is None else self.samples[0]

    @property
    def label(self) -> Tensor:
        """The most probable class, [B]."""
        return self.probs.argmax(-1)

    @property
    def score(self) -> Tensor:
        """The default score, larger = more uncertain, [B]."""
        return self.score_by(self.default)

    @cached_property
    def levels(self) -> Tensor | None:
        """The thresholds of notice and reject for each input, [B, 2]; None: the model is not calibrated."""
        return None if self.triage is None else self.triage.levels_of(self)

    @cached_property
    def stated(self) -> Tensor | None:
        """Probabilities that come true on data like the calibration data, [B, K]; None: the model is not calibrated."""
        return None if self.triage is None else self.triage.probabilities(self)

    @property
    def verdict(self) -> list[str]:
        """What to do with each prediction: "accept", "notice" or "reject".

        Needs thresholds: abnn.calibrate(model, loader).
        """
        if self.levels is None:
            raise NotFittedError(
                "verdict: this model has no thresholds for this score and number of draws and views; set them with "
                "abnn.calibrate(model, loader), on data that was not used for training, then predict again in the "
                "same way."
            )
        notice, reject = self.levels.unbind(1)
        return verdicts(self.score, notice, reject)

    def score_by(self, name: str) -> Tensor:
        """Return a score by its name, [B]: one of abnn.scores.SCORES or ``own``.

        It is infinite where it, or a probability, is NaN.
        """
        if name in self.own:
            score = self.own[name]
        else:
            score = find_score(name, tuple(self.own), self.distribution)(self)
        return score.masked_fill(score.isnan() | self.samples.mean(0).isnan().any(-1), torch.inf)

    def apply(self, change: Callable[[Tensor], Tensor]) -> Prediction:
        """Return a copy in which ``change`` is applied to every tensor, to move or clone it, say."""
        tensors = {name: None if (value := getattr(self, name)) is None else change(value) for name in self.TENSORS}
        own = {name: change(value) for name, value in self.own.items()}
        parts = None if self.parts is None else {name: change(value) for name, value in self.parts.items()}
        return replace(self, samples=change(self.samples), own=own, parts=parts, **tensors)  # type: ignore[arg-type]

    def to_pandas(self, class_names: Sequence[str] | None = None) -> pandas.DataFrame:
        """Return a table with a row for each input: label, score, verdict and the probability of each class.

        class_names  for the label and the columns; None: class numbers
        """
        probs = (self.probs if self.stated is None else self.stated).cpu().numpy()
        names = self._names(class_names, probs.shape[1])
        first = self._first_column(names if class_names is not None else range(len(names)))
        return self._table(first, {f"p({name})": probs[:, index] for index, name in enumerate(names)})

    def _first_column(self, names: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the first column of a table."""
        return {"label": [names[label] for label in self.label.tolist()]}

    def _names(self, names: Sequence[str] | None, count: int) -> list[str]:
        """Return the names of classes, or their numbers; raise an error for a wrong number of names."""
        if names is not None and len(names) != count:
            raise InputError(
                explain("class_names", f"{len(names)} names", f"{count}, one for each of the {self.distribution}")
            )
        return [str(name) for name in (range(count) if names is None else names)]

    def _table(self, first: dict[str, Any], rest: dict[str, Any]) -> pandas.DataFrame:
        """Return a table with score and verdict between the first and the other columns."""
        middle: dict[str, Any] = {"score": self.score.cpu().numpy()}
        if self.levels is not None:
            middle["verdict"] = self.verdict
        return import_extra("pandas", "pandas").DataFrame({**first, **middle, **rest})

    def __len__(self) -> int:
        return self.samples.shape[1]

    def __repr__(self) -> str:
        thresholds = "verdicts" if self.triage is not None else "no thresholds"
        size = f"{len(self)} inputs, {self.samples.shape[2]} {self.distribution}"
        return f"{type(self).__name__}({size}, score {self.default!r}, {thresholds})"


def concatenate(parts: Sequence[Prediction]) -> Prediction:
    """Return the predictions for several batches as one.

    What one of them lacks, such as a learnt score, the result lacks.
    """
    first = parts[0]
    fields: dict[str, Any] = {"samples": torch.cat([part.samples for part in parts], dim=1)}
    fields["triage"] = None if any(part.triage is None for part in parts) else first.triage
    for name in first.TENSORS:
        values = [getattr(part, name) for part in parts]
        fields[name] = None if any(value is None for value in values) else torch.cat(values)
    own = {name: torch.cat([part.own[name] for part in parts]) for name in first.own}
    every = [part.parts for part in parts if part.parts is not None]
    fields["parts"] = None
    if len(every) == len(parts):
        fields["parts"] = {name: torch.cat([each[name] for each in every]) for name in every[0]}
    return replace(first, own=own, **fields)


PREDICTIONS[Prediction.distribution] = Prediction
