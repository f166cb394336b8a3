"""Padding of sentences on the way through a generator: -1 inside, the network's own token and mask outside."""

from __future__ import annotations

import torch
from torch import Tensor

from abnn.model.inputs import Batch, Inputs
from abnn.outliers.text.vocabulary import Vocabulary


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
