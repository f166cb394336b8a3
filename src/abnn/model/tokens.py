"""The embeddings of a network's input tokens."""

from __future__ import annotations

import torch
from torch import nn


def are_tokens(dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Return whether inputs of this type and shape (without the batch) are sentences of tokens."""
    return not dtype.is_floating_point and not dtype.is_complex and len(shape) == 1


def token_table(network: nn.Module) -> nn.Embedding | None:
    """Return the network's input embeddings: those it names, else the largest it has; None without any."""
    getter = getattr(network, "get_input_embeddings", None)
    try:
        table = getter() if callable(getter) else None
    except (NotImplementedError, AttributeError):
        table = None
    if isinstance(table, nn.Embedding):
        return table
    tables = [part for part in network.modules() if isinstance(part, nn.Embedding)]
    return max(tables, key=lambda part: part.num_embeddings, default=None)
