"""Which axis of the inputs has the channels, and the range of values of each channel.

Inputs are [B, C, ...], as convolutions take them: images [B, C, H, W], signals and spectrograms [B, C, L]. Sequences of
features [B, T, D], as transformers and recurrent networks take them, have their channels last. Shapes alone do not tell
[B, C, L] from [B, T, D]. A model does, by its first layer with weights, see :func:`layout_of`; where there is none, the
argument ``layout`` does, and without it channels come first. Whole numbers name things and have no channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from abnn.errors import InputError, explain
from abnn.model.inputs import Batch, Inputs

FIRST, LAST = LAYOUTS = ("channels-first", "channels-last")
Range = tuple[Tensor, Tensor]
"""Lowest and highest value, [1] for all channels or [C]."""


def layout_of(model: Any) -> str:
    """Return the layout of a model's inputs; only floating-point inputs [B, T, D] can have their channels last.

    Of the first layer in it that is a convolution, or linear, recurrent or a normalisation of D features, the number of
    channels tells. ``model`` has an ``input_shape`` and ``input_dtype``, and a network as ``backbone`` or ``network``.
    """
    shape = model.input_shape
    if len(shape) != 2 or not model.input_dtype.is_floating_point:
        return FIRST
    network = getattr(model, "backbone", None) or model.network
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d | nn.Conv3d):
            return FIRST
        if isinstance(layer, nn.Conv1d):
            return LAST if layer.in_channels == shape[1] != shape[0] else FIRST
        if isinstance(layer, nn.Linear | nn.LayerNorm | nn.RNNBase):
            widths = (getattr(layer, name, None) for name in ("in_features", "normalized_shape", "input_size"))
            return LAST if any(width in (shape[1], (shape[1],)) for width in widths) else FIRST
    return FIRST


def channels_first(x: Tensor, layout: str | None) -> Tensor:
    """Return inputs of a layout as [B, C, ...]."""
    return x.movedim(-1, 1) if layout == LAST else x


def channels_back(x: Tensor, layout: str | None) -> Tensor:
    """Return [B, C, ...] as inputs of a layout."""
    return x.movedim(1, -1) if layout == LAST else x


def measure_range(batches: Iterable[Batch], layout: str | None = None) -> Range:
    """Return the smallest and the largest value of each channel over all batches, [C] each; [1] for whole numbers.

    batches  inputs; of several inputs, the main one counts
    """
    bounds: Range | None = None
    for batch in batches:
        batch = batch.first if isinstance(batch, Inputs) else batch
        if not isinstance(batch, Tensor) or batch.ndim < 2 or batch.numel() == 0:
            actual = f"shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
            raise InputError(explain("batches", actual, "non-empty tensors [B, C, ...]", "Pass the inputs alone."))
        flat = batch.flatten()[None]
        if batch.is_floating_point():
            flat = channels_first(batch, layout).transpose(0, 1).flatten(1)
        least, most = torch.aminmax(flat, dim=1)
        if not bool((torch.isfinite(least) & torch.isfinite(most)).all()):
            fix = "Clean or drop these samples."
            raise InputError(explain("batches", "NaN or infinite values", "finite values", fix))
        low, high = bounds or (least, most)
        if low.shape != least.shape:
            raise InputError(explain("batches", f"{len(least)} channels after {len(low)}", "one number of channels"))
        bounds = torch.minimum(low, least), torch.maximum(high, most)
    if bounds is None:
        raise InputError(explain("batches", "no batch", "at least one", "Is the loader empty?"))
    return bounds


def check_range(low: Tensor | float, high: Tensor | float) -> Range:
    """Return the range as two flat tensors, or raise an error; channels may come as [C], [C, 1, 1] or [1, C, 1, 1]."""
    bounds = tuple(torch.as_tensor(bound).detach() for bound in (low, high))
    if any(v.numel() != max(v.shape, default=1) for v in bounds) or bounds[0].numel() != bounds[1].numel():
        actual = " and ".join(str(tuple(v.shape)) for v in bounds)
        raise InputError(explain("low, high", f"shapes {actual}", "one number, or one per channel, for each"))
    least, most = (v.flatten() if v.is_floating_point() else v.flatten().float() for v in bounds)
    if not bool((torch.isfinite(least) & torch.isfinite(most) & (least <= most)).all()):
        raise InputError(explain("low, high", f"{least.tolist()}, {most.tolist()}", "finite values with low <= high"))
    return least, most
