"""Predictions of several labels for each input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from abnn.errors import InputError, explain
from abnn.predict.prediction.classes import Prediction


@dataclass(frozen=True, repr=False)
class LabelPrediction(Prediction):
    """A prediction for a batch in which each input has any number of labels.

    ``probs`` and ``stated`` are of each label, [B, L].
    """

    distribution: ClassVar[str] = "labels"

    @property
    def labels(self) -> Tensor:
        """True for labels with a probability above 0.5, [B, L]."""
        return self.probs > 0.5

    @property
    def label(self) -> Tensor:
        raise InputError(explain("label", "a prediction of several labels at once", "labels, one bool for each"))

    def _first_column(self, names: Sequence[Any]) -> dict[str, list[Any]]:
        texts = (", ".join(str(name) for name, yes in zip(names, row) if yes) for row in self.labels.tolist())
        return {"labels": list(texts)}
