"""The registry of scores: each is a function of a prediction, larger = more uncertain.

A new score is a function with the decorator :func:`score`, in a file of its own:

    @score("my-score")
    def my_score(prediction: Prediction) -> Tensor: ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from abnn.errors import InputError, NotFittedError, explain, unknown

ALL = ("classes", "numbers", "labels")
Formula = Callable[[Any], Tensor]  # from an :class:`abnn.predict.prediction.Prediction` to one number for each input


@dataclass(frozen=True)
class Score:
    """A score with its name.

    formula     returns one number for each input of a prediction
    statistics  whether it needs what a fit learns of the data
    about       the kinds of predictions that have it: "classes", "numbers", "labels"
    """

    name: str
    formula: Formula
    statistics: bool = False
    about: tuple[str, ...] = ALL

    def check(self, prediction: Any) -> None:
        """Raise an error where the prediction lacks what the score needs. This computes nothing."""
        if self.statistics and prediction.combined is None:
            raise without_statistics(self.name)

    def __call__(self, prediction: Any) -> Tensor:
        self.check(prediction)
        return self.formula(prediction)


SCORES: dict[str, Score] = {}


def score(name: str, statistics: bool = False, about: tuple[str, ...] = ALL) -> Callable[[Formula], Formula]:
    """Return a decorator that registers a function of a prediction as a score."""

    def register(formula: Formula) -> Formula:
        if name in SCORES:
            raise InputError(explain("name", repr(name), "a name that no other score has", "Rename one of them."))
        SCORES[name] = Score(name, formula, statistics, about)
        return formula

    return register


def find_score(name: str, more: tuple[str, ...] = (), about: str | None = None) -> Score:
    """Return the score of a name. A name that is not known is an error.

    more   other names that the error mentions
    about  what predictions consist of, see :class:`Score`; None: of anything
    """
    if name not in SCORES or about not in (None, *SCORES[name].about):
        raise unknown("score", name, (*(each.name for each in SCORES.values() if about in (None, *each.about)), *more))
    return SCORES[name]


def without_statistics(name: str) -> NotFittedError:
    """Return the error for a score that needs what a fit learns, where there was no fit."""
    usable = ", ".join(each.name for each in SCORES.values() if not each.statistics)
    return NotFittedError(f"score: {name!r} needs what abnn.fit() learns of the data; without it use one of {usable}.")
