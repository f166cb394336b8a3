"""What a network knows about tokens: which words are alike, which tokens are no words, and which one pads.

Words are alike whose embeddings point the same way. Wide embeddings are projected at random onto fewer numbers first, so that a copy of all
of them is small; neighbours of a word are looked up when it first occurs. On its way through a generator padding is -1, whatever the
network's own token and mask say.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.model.inputs import Batch, Inputs
from abnn.model.tokens import are_tokens, token_table

WIDTH, NEIGHBOURS = 256, 8
SPECIAL = [f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep", "mask", "unk")]
_KNOWN: WeakKeyDictionary[nn.Embedding, tuple[tuple[int, int], Vocabulary]] = WeakKeyDictionary()


class Vocabulary:
    """The tokens of one network.

    embeddings  [V, D]
    special     tokens that are no words
    pad         the one that pads; None: not known
    """

    def __init__(self, embeddings: Tensor, special: set[int], pad: int | None) -> None:
        self.pad, count = pad, len(embeddings)
        vectors = embeddings.detach().float().cpu()
        if vectors.shape[1] > WIDTH:
            basis = torch.randn(vectors.shape[1], WIDTH, generator=torch.Generator().manual_seed(0))
            vectors = vectors @ basis
        self.vectors = F.normalize(vectors, dim=1)
        self.is_special = torch.zeros(count, dtype=torch.bool)
        self.is_special[[token for token in special if 0 <= token < count]] = True
        self.words = (~self.is_special).nonzero()[:, 0]
        self.alike = torch.full((count, min(NEIGHBOURS, len(self.words))), -1)

    def neighbours(self, tokens: Tensor) -> Tensor:
        """Return the words most like each of ``tokens``, [..., neighbours], on the CPU."""
        wanted = tokens.unique()
        wanted = wanted[self.alike[wanted, 0] < 0]
        for some in wanted.split(256):
            like = self.vectors[some] @ self.vectors.T
            like[:, self.is_special] = -2.0
            like[torch.arange(len(some)), some] = -2.0
            self.alike[some] = like.topk(self.alike.shape[1], dim=1).indices
        return self.alike[tokens]


def vocabulary_of(model: Any) -> Vocabulary | None:
    """Return the tokens of a model's network: its input embeddings, else the largest it has; None where inputs are no tokens."""
    if not are_tokens(model.input_dtype, model.input_shape):
        return None
    network = getattr(model, "backbone", None) or model.network
    table = token_table(network)
    if table is None:
        return None
    state = table.weight.data_ptr(), table.weight._version
    if table in _KNOWN and _KNOWN[table][0] == state:
        return _KNOWN[table][1]
    config = getattr(network, "config", None)
    special = {token for name in SPECIAL if isinstance(token := getattr(config, name, None), int)}
    pad = table.padding_idx if table.padding_idx is not None else getattr(config, "pad_token_id", None)
    vocabulary = Vocabulary(table.weight, special | ({pad} if isinstance(pad, int) else set()), pad)
    _KNOWN[table] = state, vocabulary
    return vocabulary


def with_padding_known(x: Batch, vocabulary: Vocabulary | None) -> tuple[Tensor, Tensor | None]:
    """Return tokens in which padding is -1, and where they are none, [B, L]; None where nothing says what pads."""
    first, mask = (x.first, x.mask) if isinstance(x, Inputs) else (x, None)
    if mask is None and vocabulary is not None and vocabulary.pad is not None:
        mask = first != vocabulary.pad
    if mask is None or mask.shape != first.shape:
        return first, None
    return first.long().masked_fill(~mask, -1), mask


def restored(x: Batch, made: Tensor, mask: Tensor | None, vocabulary: Vocabulary | None) -> Batch:
    """Return ``x`` with the tokens that were made of it, and where sentences got shorter, another mask."""
    first = x.first if isinstance(x, Inputs) else x
    if mask is not None:
        padding = made < 0
        pad = None if vocabulary is None else vocabulary.pad
        token = first[~mask][:1] if pad is None else first.new_tensor([pad])
        own = torch.where(mask, token if len(token) else torch.zeros_like(first[:1, 0]), first)
        made = torch.where(padding, own, made).to(first.dtype)
        if isinstance(x, Inputs):
            return x.replace(first=made, mask=None if x.mask is None else ~padding)
    return x.replace(first=made) if isinstance(x, Inputs) else made
