"""Outliers of sentences: words that are changed but leave something to read, and words of which nothing is left.

Tokens are whole numbers ``[B, L]``. Padding is -1 in here (:meth:`Outliers.__call__` puts the real tokens back), so that sentences can get
shorter; it stays padding. Special tokens stay where they are: those that the network's config names, and any that all sentences of a
batch begin or end with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.outliers.base import Exchange
from abnn.outliers.mixtures import Mixed
from abnn.outliers.random import Rng


@dataclass(kw_only=True, eq=False)
class Words(Exchange):
    """What kinds that change words share. Without a model that knows which words there are, words come from the batch alone."""

    forms = ("tokens",)
    capturable = False  # neighbours are looked up on the host

    def places(self, x: Tensor) -> Tensor:
        """Return where words are that may change, [B, L]."""
        kept = x < 0
        if self.vocabulary is not None:
            special = self.vocabulary.is_special.to(x.device)
            kept = kept | special[x.clamp(0, len(special) - 1)]
        if len(x) > 3:
            padding, at = x < 0, torch.arange(x.shape[1], device=x.device).expand_as(x)
            for end in (at.masked_fill(padding, x.shape[1]).amin(1), at.masked_fill(padding, -1).amax(1)):
                tokens = x.gather(1, end.clamp(0, x.shape[1] - 1)[:, None])
                kept = kept | ((at == end[:, None]) & bool((tokens == tokens[:1]).all()))
        return ~kept

    def chosen(self, words: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        """Return a random share ``dial`` of the words of each sentence, at least one, as a mask."""
        order = (rng.uniform(*words.shape) + 2 * ~words).argsort(1)
        return (order.argsort(1) < (dial * words.sum(1, keepdim=True)).ceil()) & words

    def any_words(self, x: Tensor, words: Tensor, rng: Rng) -> Tensor:
        """Return random words in the form of ``x``: of the vocabulary, else of the batch."""
        pool = x[words] if self.vocabulary is None else self.vocabulary.words.to(x.device)
        return pool[rng.integers(max(len(pool), 1), *x.shape)] if len(pool) else x

    def foreign_words(self, x: Tensor, words: Tensor, rng: Rng) -> Tensor:
        """Return words of another language in the form of ``x``: each word always becomes the same other one, of the vocabulary, else of the batch."""
        pool = x[words].unique() if self.vocabulary is None else self.vocabulary.words.to(x.device)
        if len(pool) < 2:
            return x
        place = torch.searchsorted(pool, x.clamp_min(0))
        return pool[(place + 1 + rng.integers(len(pool) - 1, 1)) % len(pool)]

    def others_words(self, x: Tensor, words: Tensor, rng: Rng) -> Tensor:
        """Return words of other sentences of the batch in the form of ``x``; alone, a sentence gets its own."""
        count, length = words.sum(1), x.shape[1]
        order = (rng.uniform(*x.shape) + 2 * ~words).argsort(1)
        row = torch.arange(len(x), device=x.device)[:, None] + 1 + rng.integers(max(len(x) - 1, 1), *x.shape)
        row = row % len(x)
        place = (rng.uniform(*x.shape) * count[row]).long().clamp(max=length - 1)
        return torch.where(count[row] > 0, x[row, order[row, place]], x)


@dataclass(kw_only=True, eq=False)
class ChangedWords(Words):
    """A sentence that can still be read. A share ``severity`` of its words, at least one, is

    * swapped for words with similar embeddings,
    * mistyped: another token stands there, as it does where a tokenizer does not know a word,
    * or dropped, where the inputs can be padded; one word stays.
    """

    name: ClassVar[str] = "changed-words"
    severity: tuple[float, float] = (0.0, 0.3)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        words = self.places(x)
        hit, kind = self.chosen(words, dial, rng), rng.integers(3, len(x), 1)
        random = self.any_words(x, words, rng)
        alike = random
        if self.vocabulary is not None:
            near = self.vocabulary.neighbours(x.clamp(0, len(self.vocabulary.vectors) - 1).cpu()).to(x.device)
            alike = near.gather(2, rng.integers(near.shape[2], *x.shape, 1))[..., 0]
        dropped = hit & (kind == 2) & (words.sum(1, keepdim=True) > 1) & rng.pads
        first = words & (words.cumsum(1) == 1)
        dropped = dropped & ~(first & (dropped == words).all(1, keepdim=True))
        other = torch.where(kind == 1, random, alike)
        made = torch.where(hit & ~dropped & ((kind < 2) | (not rng.pads)), other, x).masked_fill(dropped, -1)
        return made.gather(1, dropped.long().argsort(dim=1, stable=True))


@dataclass(kw_only=True, eq=False)
class DestroyedWords(Words):
    """A sentence with little or nothing to read: a share ``severity`` of its words are words of other sentences, any words, or in another language."""

    name: ClassVar[str] = "destroyed-words"
    severity: tuple[float, float] = (0.5, 1.0)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        words = self.places(x)
        hit, kind = self.chosen(words, dial, rng), rng.integers(3, len(x), 1)
        other = torch.where(kind == 0, self.others_words(x, words, rng), self.any_words(x, words, rng))
        return torch.where(hit, torch.where(kind == 2, self.foreign_words(x, words, rng), other), x)


@dataclass(kw_only=True, eq=False)
class Sentences(Mixed):
    """Sentences that can still be read, and sentences with nothing to read, in equal shares; each tier draws its own severities."""

    name: ClassVar[str] = "sentences"
    parts_draw: ClassVar[bool] = True
    severity: tuple[float, float] = (0.0, 1.0)
    parts: tuple[Any, ...] = ("changed-words", "destroyed-words")
