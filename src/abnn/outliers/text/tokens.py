"""Outliers of token sequences ``[B, L]``: whole numbers that name words, not amounts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.outliers.base import Exchange
from abnn.outliers.random import Rng


@dataclass(kw_only=True, eq=False)
class Tokens(Exchange):
    """A random share ``severity`` of a sample's positions get tokens from random places of other samples of the batch.

    At severity 1 nothing of the sample is left but its length. Tokens in ``keep``, such as padding, stay where they are
    and are never drawn. Alone in its batch, a sample has nothing to draw from, and gets severity 0.
    """

    name: ClassVar[str] = "tokens"
    forms = ("tokens",)
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.keep
        if not isinstance(given, tuple | list) or not all(type(token) is int for token in given):
            raise InputError(explain("keep", repr(given), "a list of tokens, which are whole numbers"))
        self.keep = tuple(given)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        batch, length = x.shape
        kept = x < 0  # padding
        for token in self.keep:
            kept = kept | (x == token)
        count = length - kept.sum(1, keepdim=True)
        # Kept tokens come last in a random order of the positions; counts, unlike shapes, may depend on the data.
        order = (rng.uniform(batch, length) + 2 * kept).argsort(1)
        hit = order.argsort(1) < (dial * count).ceil()
        row = (
            torch.arange(batch, device=x.device)[:, None] + 1 + rng.integers(max(batch - 1, 1), batch, length)
        ) % batch
        place = (rng.uniform(batch, length) * count[row, 0]).long().clamp(max=length - 1)
        replaced = hit & (count[row, 0] > 0) & (batch > 1)
        return torch.where(replaced, x[row, order[row, place]], x)
