"""Several generators in one: mixtures with one severity, graded ones, the two-tier recipe, and the choice by form."""

from __future__ import annotations

import copy
from dataclasses import field
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.model.inputs import Batch
from abnn.outliers.base import FORMS, Outliers, form_of, lookup
from abnn.outliers.random import Rng

CONTENT = ("noise", "patches", "blobs", "backgrounds")


class Mixed(Outliers):
    """Every sample goes through one of ``parts``, chosen at random; in a batch they have equal shares up to rounding.

    The mixture draws the severities (always 1 unless told otherwise); a part that ends lower takes its own upper end.
    A part may be named more than once to give it a larger share.
    """

    name = "mixed"
    forms: ClassVar[tuple[str, ...] | None] = None
    parts_draw = False  # whether parts draw severities of their own, where the caller gives none
    severity: tuple[float, float] = (1.0, 1.0)
    parts: tuple[Any, ...] = ("noise", "patches", "invert", "blobs")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts = tuple(as_part(part) for part in as_parts(self.parts))

    def parts_of(self) -> tuple[Outliers, ...]:
        return self.parts

    def copied(self) -> Outliers:
        result = copy.copy(self)
        result.parts = tuple(part.copied() for part in self.parts)
        return result

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        if not self.parts_draw:
            severity = self.choose_severity(len(x), severity, rng)
        # Each part gets a fixed number of slots, and samples are dealt into them at random: sizes that do not depend on
        # the draw, and no part is computed for samples of another. Slots left over repeat a sample and are dropped.
        slots = -(-len(x) // len(self.parts))
        slot_of_sample = rng.permutations(slots * len(self.parts))
        samples = (slot_of_sample.argsort() % len(x)).split(slots)
        pairs = [
            part.generate(x.index_select(0, own), None if severity is None else severity.index_select(0, own), rng)
            for part, own in zip(self.parts, samples, strict=True)
        ]
        result, severities = zip(*pairs)
        chosen = slot_of_sample[: len(x)]
        return torch.cat(result).index_select(0, chosen), torch.cat(severities).index_select(0, chosen)


class Graded(Mixed):
    """A mixture with severities from 0 to 1."""

    name = "graded"
    severity: tuple[float, float] = (0.0, 1.0)


class TwoTier(Mixed):
    """One half keeps the label in another style, the other half destroys the content; made for images and signals.

    The tiers draw their own severities: the first ends low, the second reaches 1. So the network learns, from its own
    data alone, what "somewhat off but readable" and "nothing to read" look like. ``style`` and ``content`` are lists of
    names or generators with equal shares in their tier; a generator given by name in ``style`` makes its strongest
    change at the upper end of ``style_severity``.
    """

    name = "two-tier"
    parts_draw = True
    severity: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    parts: tuple[Any, ...] = field(default=(), init=False)
    style: tuple[Any, ...] = ("style",)
    content: tuple[Any, ...] = CONTENT
    style_severity: tuple[float, float] = (0.0, 0.3)
    content_severity: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        own = {"severity": self.style_severity}
        style = (({"name": part} | own) if isinstance(part, str) else part for part in as_parts(self.style))
        upper = Graded(parts=tuple(style), severity=self.style_severity)
        lower = Graded(parts=as_parts(self.content), severity=self.content_severity)
        self.style_severity, self.content_severity = upper.severity, lower.severity
        self.parts = (upper, lower)
        self.style, self.content = upper.parts, lower.parts
        super().__post_init__()

    def copied(self) -> Outliers:
        result = super().copied()
        assert isinstance(result, TwoTier)
        result.style, result.content = (part.parts for part in result.parts)
        return result


class Tiers(Mixed):
    """Images that are changed but readable, and images of which nothing is left, in equal shares."""

    name = "tiers"
    parts_draw = True
    severity: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    parts: tuple[Any, ...] = ("changed", "destroyed")


class Tabular(Mixed):
    """Feature noise and feature shuffling in equal shares, for flat inputs ``[B, F]``."""

    name = "tabular"
    severity: tuple[float, float] = (0.0, 1.0)
    parts: tuple[Any, ...] = ("feature-noise", "feature-shuffle")


class Auto(Mixed):
    """ "changed" and "destroyed" in equal shares for images, "two-tier" for signals and volumes, "tabular" for flat inputs.

    Whole numbers ``[B, L]`` are tokens, and get "sentences".
    """

    name = "auto"
    forms = tuple(FORMS)
    severity: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    parts: tuple[Any, ...] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self.parts = (Tabular(), TwoTier(), Tiers(), TwoTier(), as_part("sentences"))  # in the order of the forms
        super().__post_init__()

    def chosen_for(self, x: Batch) -> Outliers:
        return self.parts[list(FORMS).index(str(form_of(x)))]

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        return self.chosen_for(x).generate(x, severity, rng)


def as_parts(parts: Any) -> tuple[Any, ...]:
    if not isinstance(parts, tuple | list) or not parts:
        raise InputError(explain("parts", repr(parts), "a list of outlier names or generators, not empty"))
    return tuple(parts)


def as_part(part: Any) -> Outliers:
    if isinstance(part, Outliers):
        return part
    return Outliers.from_config(part) if isinstance(part, dict) else lookup(part)()
