"""What a model says about several labels at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from abnn.errors import InputError, explain
from abnn.predict.prediction.classes import Prediction

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class LabelPrediction(Prediction):
    """What the model says about a batch, of which each input has any number of labels; ``probs`` and ``stated`` are theirs, [B, L]."""

    distribution: ClassVar[str] = "labels"

    @property
    def labels(self) -> Tensor:
        """Which labels are more probable than not, as bools, [B, L]."""
        return self.probs > 0.5

    @property
    def label(self) -> Tensor:
        raise InputError(explain("label", "a prediction of several labels at once", "labels, one bool for each"))

    def to_pandas(self, class_names: Sequence[str] | None = None) -> pandas.DataFrame:
        """A table with a row for each input: its labels, score, verdict and the probability of each label."""
        probs = (self.probs if self.stated is None else self.stated).cpu()
        names = self._names(class_names, probs.shape[1])
        chosen = [", ".join(name for name, yes in zip(names, row) if yes) for row in self.labels.tolist()]
        return self._table({"labels": chosen}, {f"p({name})": probs[:, i].numpy() for i, name in enumerate(names)})
