"""Models that earlier versions saved, as this one reads them.

Format 7 had no witness (:mod:`abnn.bayes.witness`). With one that says nothing, and nothing of it in the score, such a model says what it
said. Models of words are refused: their closed form had other places. Up to format 8 attachments counted for every input, whatever it looked like.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from abnn.errors import FileFormatError
from abnn.model.network import AttachedNetwork
from abnn.scores.combined import NEVER
from abnn.store.folder import OTHER_METHOD

PARTS_AT = {"centre": 0, "unit": 0, "anchor": 0, "linear": 1, "inner": 1}
"""Tensors of the combined score that have an entry for each part, and in which dimension."""


def of_earlier(version: int, path: Path, model: AttachedNetwork, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model of some version as this version reads them."""
    if version == 7:
        tensors = _with_silent_witness(path, model, tensors)
    if version <= 8 and "combined.centre" in tensors:
        tensors = {**tensors, "combined.familiar": torch.tensor(-NEVER)}
    return tensors


def _with_silent_witness(path: Path, model: AttachedNetwork, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model of format 7 with those of a witness that says nothing."""
    if model.combined is None or model.closed_form is None or "combined.centre" not in tensors:
        return tensors
    if model.closed_form.words is not None:
        raise FileFormatError(f"{path}: {OTHER_METHOD}")
    names = model.combined.names
    old = torch.tensor([place for place, name in enumerate(names) if not name.startswith("looks ")])
    found = dict(tensors)
    for name, dimension in PARTS_AT.items():
        value = tensors.get(f"combined.{name}")
        if value is None or value.ndim <= dimension or value.shape[dimension] != len(old):
            continue  # not the tensors of such a model, which is said where they are checked
        shape = [len(names) if place == dimension else size for place, size in enumerate(value.shape)]
        wide = torch.ones(shape) if name == "unit" else torch.zeros(shape)
        found[f"combined.{name}"] = wide.to(value.dtype).index_copy(dimension, old, value)
    found["combined.readable"] = torch.full((len(names),), NEVER)
    for name, value in model.closed_form.witness.state_dict().items():
        found[f"closed_form.witness.{name}"] = torch.zeros_like(value, device="cpu")
    return found
