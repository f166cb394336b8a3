"""What one model says about several sets of data: everything that metrics, tables and pages are computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from abnn.decisions import verdict_levels
from abnn.errors import InputError, explain, unknown

TIERS = ("id", "semi", "full")
Thresholds = tuple[float, float]  # (notice, reject): scores above the first are noticed, above the second refused


@dataclass(frozen=True)
class SetResult:
    """One set of data as one model sees it."""

    name: str  # "mnist", "printed digits", ...
    tier: str  # "id", "semi" or "full"
    probs: np.ndarray  # class probabilities, averaged over draws, float32 [N, K]
    labels: np.ndarray  # true classes, int64 [N], -1 where an input belongs to none
    scores: dict[str, np.ndarray]  # by score name, float32 [N], larger = more uncertain
    shown: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # inputs that are kept as pictures, [M]
    images: np.ndarray = field(default_factory=lambda: np.zeros((0, 1, 1), np.uint8))  # [M, H, W] or [M, H, W, 3]
    skipped: tuple[str, ...] = ()  # inputs that could not be read, with the reason
    data_hash: str = ""  # sha256 of the inputs

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise unknown("tier", self.tier, TIERS)
        sizes = {"labels": len(self.labels), **{f"scores[{name!r}]": len(each) for name, each in self.scores.items()}}
        for what, size in sizes.items():
            if size != len(self.probs):
                raise InputError(explain(what, f"{size} values", f"{len(self.probs)}, one for each input"))
        where, shown, images = f"set {self.name!r}", self.shown, self.images
        if self.probs.ndim != 2 or not np.isfinite(self.probs).all():
            fault = f"an array of shape {self.probs.shape}, {np.count_nonzero(~np.isfinite(self.probs))} not finite"
            raise InputError(explain(f"probs of {where}", fault, "finite probabilities of shape (inputs, classes)"))
        if len(shown) != len(images):
            fault = f"{len(images)} pictures for {len(shown)} numbers in shown"
            raise InputError(explain(f"images of {where}", fault, "one picture for each number in shown"))
        if len(shown) and not 0 <= min(shown) <= max(shown) < len(self):
            fault = f"numbers from {min(shown)} to {max(shown)}"
            raise InputError(explain(f"shown of {where}", fault, f"numbers of inputs, 0 to {len(self) - 1}"))
        if len(shown) and (images.dtype != np.uint8 or (images.ndim != 3 and images.shape[3:] != (3,))):
            fix = "Scale pictures to 0..255 and move the channels last."
            fault = f"{images.dtype} of shape {images.shape}"
            raise InputError(explain(f"images of {where}", fault, "uint8 [M, H, W] or [M, H, W, 3]", fix))

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def predicted(self) -> np.ndarray:
        return self.probs.argmax(1)

    @property
    def correct(self) -> np.ndarray:
        """Where the prediction is right; inputs without a class count as wrong."""
        return self.predicted == self.labels

    @property
    def labelled(self) -> bool:
        return bool((self.labels >= 0).all())


@dataclass(frozen=True)
class Evaluation:
    """One model on several sets.

    name              what to call the model in tables: "plain network", "attached network"
    score             the name of its score that tables use
    sets              in the order of their tiers
    thresholds        for all inputs; None: the model gives no verdicts
    seed              of the training run
    config            everything that led to the model, as JSON can hold it
    seconds           how long the parts of the run took, by name
    class_thresholds  for each predicted class, in the place of ``thresholds``; () if there are none
    """

    name: str
    score: str
    sets: tuple[SetResult, ...]
    thresholds: Thresholds | None = None
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    class_thresholds: tuple[Thresholds, ...] = ()

    def __post_init__(self) -> None:
        if not self.sets:
            raise InputError(explain(f"evaluation {self.name!r}", "no sets", "at least one set of data"))
        check_distinct([each.name for each in self.sets], f"evaluation {self.name!r}", "sets")
        for each in self.sets:
            if self.score not in each.scores:
                raise unknown(f"score of set {each.name!r} of {self.name!r}", self.score, each.scores)
        for notice, reject in filter(None, (self.thresholds, *self.class_thresholds)):
            if not -np.inf < notice <= reject:
                raise InputError(explain("thresholds", f"({notice}, {reject})", "two numbers, notice <= reject"))
        classes = max(each.probs.shape[1] for each in self.sets)
        if self.class_thresholds and (self.thresholds is None or len(self.class_thresholds) != classes):
            fault = f"{len(self.class_thresholds)} pairs" + ("" if self.thresholds else " without thresholds")
            raise InputError(explain("class_thresholds", fault, f"{classes}, one for each class, beside thresholds"))

    def levels(self, result: SetResult) -> np.ndarray:
        """Return 0 accept, 1 notice, 2 reject for each input of a set; only for models with thresholds."""
        assert self.thresholds is not None
        limits = np.asarray(self.class_thresholds)[result.predicted].T if self.class_thresholds else self.thresholds
        return verdict_levels(result.scores[self.score], *limits)

    def verdict_counts(self, tier: str) -> np.ndarray:
        """Return how many inputs of all sets of a tier are accepted, noticed and rejected."""
        return np.bincount(np.concatenate([self.levels(each) for each in self.tier(tier)]), minlength=3)

    @property
    def tiers(self) -> list[str]:
        """The tiers that have a set, in their order."""
        return [tier for tier in TIERS if self.tier(tier)]

    def tier(self, tier: str) -> list[SetResult]:
        return [each for each in self.sets if each.tier == tier]

    def scores(self, tier: str) -> np.ndarray:
        """Return the scores of all sets of one tier, one after another."""
        return np.concatenate([each.scores[self.score] for each in self.tier(tier)])


def check_distinct(names: Sequence[str], argument: str, what: str) -> None:
    """Refuse two models or sets of one name: a reader could not tell them apart."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        fault = f"several {what} named {twice[0]!r}"
        raise InputError(explain(argument, fault, "a different name for each", "Rename one of them."))
