"""Outliers of sentences: tokens of other sentences, words that are changed but leave something to read, and words of which nothing is left.

Tokens are whole numbers ``[B, L]``. Padding is -1 in here (:meth:`Outliers.__call__` puts the real tokens back), so that sentences can get
shorter; it stays padding. Special tokens stay where they are: those that the network's config names, and any that all sentences of a
batch begin or end with.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.outliers.base import Exchange
from abnn.outliers.mixtures import Mixed
from abnn.outliers.random import Rng


def words_first(words: Tensor, rng: Rng) -> Tensor:
    """Return the places of each sentence in random order, those of ``words`` before all others; counts may depend on data, unlike shapes."""
    return (rng.uniform(*words.shape) + 2 * ~words).argsort(1)


def first_share(order: Tensor, words: Tensor, dial: Tensor) -> Tensor:
    """Return a share ``dial`` of the words of each sentence, at least one, as a mask: those that come first in ``order``."""
    return (order.argsort(1) < (dial * words.sum(1, keepdim=True)).ceil()) & words


def words_of_others(x: Tensor, words: Tensor, order: Tensor, rng: Rng) -> Tensor:
    """Return words of other sentences of the batch in the form of ``x``; alone, a sentence gets its own."""
    count, length = words.sum(1), x.shape[1]
    row = torch.arange(len(x), device=x.device)[:, None] + 1 + rng.integers(max(len(x) - 1, 1), *x.shape)
    row = row % len(x)
    place = (rng.uniform(*x.shape) * count[row]).long().clamp(max=length - 1)
    return torch.where(count[row] > 0, x[row, order[row, place]], x)


class Tokens(Exchange):
    """A random share ``severity`` of a sample's positions get tokens from random places of other samples of the batch.

    At severity 1 nothing of the sample is left but its length. Tokens in ``keep``, such as padding, stay where they are
    and are never drawn. Alone in its batch, a sample has nothing to draw from, and gets severity 0.
    """

    name = "tokens"
    forms = ("tokens",)
    keep: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        keep: Any = self.keep
        if not isinstance(keep, tuple | list) or not all(type(token) is int for token in keep):
            raise InputError(explain("keep", repr(keep), "a list of tokens, which are whole numbers"))
        self.keep = tuple(keep)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        words = x >= 0
        for token in self.keep:
            words = words & (x != token)
        order = words_first(words, rng)
        hit = first_share(order, words, dial) & (len(x) > 1)
        return torch.where(hit, words_of_others(x, words, order, rng), x)


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


class ChangedWords(Words):
    """A sentence that can still be read. A share ``severity`` of its words, at least one, is

    * swapped for words with similar embeddings,
    * mistyped: another token stands there, as it does where a tokenizer does not know a word,
    * or dropped, where the inputs can be padded; one word stays.
    """

    name = "changed-words"
    severity: tuple[float, float] = (0.0, 0.3)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        words = self.places(x)
        hit, kind = first_share(words_first(words, rng), words, dial), rng.integers(3, len(x), 1)
        random = self.any_words(x, words, rng)
        alike = random
        if self.vocabulary is not None:
            near = self.vocabulary.neighbours(x.clamp(0, len(self.vocabulary.vectors) - 1).cpu()).to(x.device)
            alike = near.gather(2, rng.integers(near.shape[2], *x.shape, 1))[..., 0]
        dropped = hit & (kind == 2) & (words.sum(1, keepdim=True) > 1) & rng.pads
        first = words & (words.cumsum(1) == 1)
        dropped = dropped & ~(first & (dropped == words).all(1, keepdim=True))
        other = torch.where(kind == 1, random, alike)
        changed = torch.where(hit & ~dropped & ((kind < 2) | (not rng.pads)), other, x).masked_fill(dropped, -1)
        return changed.gather(1, dropped.long().argsort(dim=1, stable=True))


class DestroyedWords(Words):
    """A sentence with little or nothing to read: a share ``severity`` of its words are words of other sentences, any words, or in another language."""

    name = "destroyed-words"
    severity: tuple[float, float] = (0.5, 1.0)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        words = self.places(x)
        hit, kind = first_share(words_first(words, rng), words, dial), rng.integers(3, len(x), 1)
        others = words_of_others(x, words, words_first(words, rng), rng)
        other = torch.where(kind == 0, others, self.any_words(x, words, rng))
        return torch.where(hit, torch.where(kind == 2, self.foreign_words(x, words, rng), other), x)


class Sentences(Mixed):
    """Sentences that can still be read, and sentences with nothing to read, in equal shares; each tier draws its own severities."""

    name = "sentences"
    parts_draw = True
    severity: tuple[float, float] = (0.0, 1.0)
    parts: tuple[Any, ...] = ("changed-words", "destroyed-words")
