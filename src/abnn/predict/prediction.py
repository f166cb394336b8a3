"""What a model says about a batch, with everything that scores and verdicts need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abnn.decisions import verdicts
from abnn.errors import MissingExtraError, NotFittedError
from abnn.scores import find_score

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Prediction:
    """What the model says about a batch.

    samples   class probabilities of every draw, [S, B, K]; of a model with bounded attachments, the first are those of the
              plain network: [plain, attached] with mean weights, [plain, one for each view] with views as well, and
              [plain, draw 1, ..., draw n] with draws
    combined  the learnt score, [B], if a fit has learnt it
    parts     what it is made of, by name, each [B]: 0 is usual, 1 as far above that as one ordinary input in six
    default   the name of the score that ``score`` shows
    own       scores that only the method at hand can give, by name, each [B], larger = more uncertain
    views     how many views of each image the draws looked at; None: not known
    triage    the thresholds that are about predictions of this kind, if the model was calibrated
    """

    samples: Tensor
    combined: Tensor | None = None
    parts: Mapping[str, Tensor] | None = None
    default: str = "entropy"
    own: Mapping[str, Tensor] = field(default_factory=dict)
    views: int | None = None
    triage: Any = None

    @property
    def probs(self) -> Tensor:
        """The prediction averaged over the draws, [B, K]."""
        return self.samples.mean(0)

    @property
    def plain(self) -> Tensor:
        """What the network says without attachments, [B, K]; where that is not known, the averaged prediction."""
        return self.probs if self.combined is None else self.samples[0]

    @property
    def label(self) -> Tensor:
        """The most probable class of the averaged prediction, [B]."""
        return self.probs.argmax(-1)

    @property
    def score(self) -> Tensor:
        """Larger = more uncertain, [B]."""
        return self.score_by(self.default)

    @cached_property
    def levels(self) -> Tensor | None:
        """The thresholds of notice and reject for each input, [B, 2], if the model was calibrated."""
        return None if self.triage is None else self.triage.levels_of(self)

    @cached_property
    def stated(self) -> Tensor | None:
        """Probabilities that come true on data like the calibration data, [B, K], likewise."""
        return None if self.triage is None else self.triage.probabilities(self)

    @property
    def verdict(self) -> list[str]:
        """What to do with each prediction: "accept", "notice" or "reject". Needs thresholds: abnn.calibrate(model, loader)."""
        if self.levels is None:
            raise NotFittedError(
                "verdict: this model has no thresholds for this score and number of draws and views; set them with "
                "abnn.calibrate(model, loader), on data that was not used for training, then predict again in the same way."
            )
        notice, reject = self.levels.unbind(1)
        return verdicts(self.score, notice, reject)

    def score_by(self, name: str) -> Tensor:
        """Any of abnn.scores.SCORES, or of the method's own, by its name, [B]; infinite where it, or a probability, is NaN."""
        score = self.own[name] if name in self.own else find_score(name, tuple(self.own)).function(self)
        return score.masked_fill(score.isnan() | self.probs.isnan().any(-1), torch.inf)

    def apply(self, change: Callable[[Tensor], Tensor]) -> Prediction:
        """The same with every tensor changed: moved, cloned."""
        combined = None if self.combined is None else change(self.combined)
        own = {name: change(value) for name, value in self.own.items()}
        parts = None if self.parts is None else {name: change(value) for name, value in self.parts.items()}
        return replace(self, samples=change(self.samples), combined=combined, own=own, parts=parts)

    def to_pandas(self, class_names: Sequence[str] | None = None) -> pandas.DataFrame:
        """A table with a row for each input: label, score, verdict and the probability of each class.

        class_names  for the label and the columns; None: class numbers
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "pandas") from None
        probs = (self.probs if self.stated is None else self.stated).cpu()
        names = [str(name) for name in (range(probs.shape[1]) if class_names is None else class_names)]
        labels = self.label.tolist()
        columns: dict[str, Any] = {"label": labels if class_names is None else [names[label] for label in labels]}
        columns["score"] = self.score.cpu().numpy()
        if self.levels is not None:
            columns["verdict"] = self.verdict
        columns |= {f"p({name})": probs[:, index].numpy() for index, name in enumerate(names)}
        return pandas.DataFrame(columns)

    def __len__(self) -> int:
        return self.samples.shape[1]


def concatenate(parts: Sequence[Prediction]) -> Prediction:
    """Return several batches as one; what one of them lacks, such as a learnt score, the result lacks too."""
    first = parts[0]
    joined: dict[str, Any] = {"samples": torch.cat([part.samples for part in parts], dim=1)}
    scores = [part.combined for part in parts if part.combined is not None]
    joined["combined"] = torch.cat(scores) if len(scores) == len(parts) else None
    joined["triage"] = None if any(part.triage is None for part in parts) else first.triage
    own = {name: torch.cat([part.own[name] for part in parts]) for name in first.own}
    every = [part.parts for part in parts if part.parts is not None]
    joined["parts"] = None
    if len(every) == len(parts):
        joined["parts"] = {name: torch.cat([each[name] for each in every]) for name in every[0]}
    return replace(first, own=own, **joined)
