"""Several generators in one: mixtures with one severity, graded ones, and the two-tier recipe."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.outliers.base import Outliers, lookup
from abnn.outliers.random import Rng
from abnn.outliers.tokens import Tokens

CONTENT = ("noise", "patches", "blobs", "backgrounds")
SCENERY = (*CONTENT, "leaves")
SCENERY_SEVERITY = (0.5, 1.0)


@dataclass(kw_only=True, eq=False)
class Mixed(Outliers):
    """Every sample goes through one of ``parts``, chosen at random; in a batch they have equal shares up to rounding.

    The mixture draws the severities (always 1 unless told otherwise); a part that ends lower takes its own upper end.
    A part may be named more than once to give it a larger share.
    """

    name: ClassVar[str] = "mixed"
    severity: tuple[float, float] = (1.0, 1.0)
    parts: tuple[Any, ...] = ("noise", "patches", "invert", "blobs")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.parts = tuple(as_part(part) for part in listed(self.parts))

    def prepare(self, low: Tensor | float, high: Tensor | float) -> None:
        super().prepare(low, high)
        for part in self.parts:
            part.prepare(low, high)

    def prepare_missing(self, low: Tensor | float, high: Tensor | float) -> None:
        if self._range is None:
            super().prepare(low, high)
        for part in self.parts:
            part.prepare_missing(low, high)

    @property
    def uses_range(self) -> bool:
        return any(part.uses_range for part in self.parts)

    @property
    def needs_range(self) -> bool:
        return any(part.needs_range for part in self.parts)

    def copied(self) -> Outliers:
        made = copy.copy(self)
        made.parts = tuple(part.copied() for part in self.parts)
        return made

    def data_digests(self) -> list[str]:
        return [digest for part in self.parts for digest in part.data_digests()]

    def check_rank(self, x: Tensor) -> None:
        for part in self.parts:
            part.check_rank(x)

    def part_severity(self, batch: int, severity: Tensor | None, rng: Rng) -> Tensor | None:
        return self.choose_severity(batch, severity, rng)

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        severity = self.part_severity(len(x), severity, rng)
        # Each part gets a fixed number of slots, and samples are dealt into them at random: sizes that do not depend on
        # the draw, and no part is computed for samples of another. Slots left over repeat a sample and are dropped.
        slots = -(-len(x) // len(self.parts))
        slot_of_sample = rng.permutations(slots * len(self.parts))
        sample_in_slot = slot_of_sample.argsort() % len(x)
        made, severities = [], []
        for number, part in enumerate(self.parts):
            samples = sample_in_slot[number * slots : (number + 1) * slots]
            given = None if severity is None else severity.index_select(0, samples)
            part_x, part_severity = part.generate(x.index_select(0, samples), given, rng)
            made.append(part_x)
            severities.append(part_severity)
        chosen = slot_of_sample[: len(x)]
        return torch.cat(made).index_select(0, chosen), torch.cat(severities).index_select(0, chosen)


@dataclass(kw_only=True, eq=False)
class Graded(Mixed):
    """A mixture with severities from 0 to 1."""

    name: ClassVar[str] = "graded"
    severity: tuple[float, float] = (0.0, 1.0)


@dataclass(kw_only=True, eq=False)
class TwoTier(Mixed):
    """One half keeps the label in another style, the other half destroys the content; made for images and signals.

    The tiers draw their own severities: the first ends low, the second reaches 1. So the network learns, from its own
    data alone, what "somewhat off but readable" and "nothing to read" look like. ``style`` and ``content`` are lists of
    names or generators with equal shares in their tier; a generator given by name in ``style`` makes its strongest
    change at the upper end of ``style_severity``.
    """

    name: ClassVar[str] = "two-tier"
    severity: tuple[float, float] = field(default=(0.0, 1.0), init=False)
    parts: tuple[Any, ...] = field(default=(), init=False)
    style: tuple[Any, ...] = ("style",)
    content: tuple[Any, ...] = CONTENT
    style_severity: tuple[float, float] = (0.0, 0.3)
    content_severity: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        style = [{"name": p, "severity": self.style_severity} if isinstance(p, str) else p for p in listed(self.style)]
        upper = Graded(parts=tuple(style), severity=self.style_severity)
        lower = Graded(parts=listed(self.content), severity=self.content_severity)
        self.style, self.style_severity = upper.parts, upper.severity
        self.content, self.content_severity = lower.parts, lower.severity
        self.parts = (upper, lower)
        super().__post_init__()

    def part_severity(self, batch: int, severity: Tensor | None, rng: Rng) -> Tensor | None:
        return severity

    def copied(self) -> Outliers:
        made = copy.copy(self)
        upper, lower = made.parts = tuple(part.copied() for part in self.parts)
        made.style, made.content = upper.parts, lower.parts
        return made


@dataclass(kw_only=True, eq=False)
class Tabular(Mixed):
    """Feature noise and feature shuffling in equal shares, for flat inputs ``[B, F]``."""

    name: ClassVar[str] = "tabular"
    severity: tuple[float, float] = (0.0, 1.0)
    parts: tuple[Any, ...] = ("feature-noise", "feature-shuffle")


@dataclass(kw_only=True, eq=False)
class Auto(Outliers):
    """ "two-tier" for images (with scenes of leaves among the destroyed content) and signals, "tabular" for flat inputs.

    Whole numbers ``[B, L]`` are tokens, and get "tokens".
    """

    name: ClassVar[str] = "auto"
    ranks: ClassVar[tuple[int, ...] | None] = (0, 1, 2, 3)
    takes_tokens: ClassVar[bool] = True
    severity: tuple[float, float] = field(default=(0.0, 1.0), init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._made: dict[int, Outliers] = {
            0: Tabular(),
            1: TwoTier(),
            2: TwoTier(content=SCENERY, content_severity=SCENERY_SEVERITY),
            3: TwoTier(),
        }
        self._tokens = Tokens()

    def prepare(self, low: Tensor | float, high: Tensor | float) -> None:
        super().prepare(low, high)
        for each in self._made.values():
            each.prepare(low, high)

    def copied(self) -> Outliers:
        made = copy.copy(self)
        made._made = {rank: each.copied() for rank, each in self._made.items()}
        return made

    def chosen_for(self, x: Tensor) -> Outliers:
        return self._made[x.ndim - 2] if x.is_floating_point() else self._tokens

    def check_rank(self, x: Tensor) -> None:
        if not x.is_floating_point() and x.ndim != 2:
            given, accepted = f"{x.dtype} of shape {tuple(x.shape)}", "floating-point values, or tokens [B, L]"
            fix = "Convert the inputs, or pass a data set of real outliers."
            raise InputError(explain("x for outliers 'auto'", given, accepted, fix))
        super().check_rank(x)

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        return self.chosen_for(x).generate(x, severity, rng)


def listed(parts: Any) -> tuple[Any, ...]:
    if not isinstance(parts, tuple | list) or not parts:
        raise InputError(explain("parts", repr(parts), "a list of outlier names or generators, not empty"))
    return tuple(parts)


def as_part(part: Any) -> Outliers:
    if isinstance(part, Outliers):
        return part
    return Outliers.from_config(part) if isinstance(part, dict) else lookup(part)()
