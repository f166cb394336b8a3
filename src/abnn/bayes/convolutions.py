"""Three ways to convolve with all weight draws in one call; they give the same numbers up to rounding.

    y_s = W_s * x_s + b_s,   s = 1..S

x        [S·B, C, ...] if ``folded``, else [B, C, ...] shared by all draws
weight   [S, O, C/g, ...], bias [S, O] or None
returns  [S·B, O, ...]; of images, with the channels last in memory if those of ``x`` are

grouped  one convolution: folded draws become its groups, draws that share their input its output channels
loop     one convolution for each draw
matmul   patches of the input side by side in memory, then one batched matrix product
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Geometry:
    """What torch's convolutions take beside input and weights."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int = 1

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int | None = None) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[len(self.stride) - 1]
        groups = self.groups if groups is None else groups
        return function(x, weight, bias, stride=self.stride, padding=self.padding, groups=groups)


Way = Callable[[Tensor, Tensor, Tensor | None, Geometry, bool], Tensor]


def grouped(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    draws, groups = weight.shape[0], geometry.groups
    if folded:
        flat = None if bias is None else bias.flatten()
        y = geometry.convolve(_beside(x, draws), weight.flatten(0, 1), flat, draws * groups)
        return _rows(y, lambda y, channels: y.unflatten(channels, (draws, -1)), draw_at=0)
    # Output channels are ordered group, draw, channel within the group.
    weight = weight.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 2)
    bias = None if bias is None else bias.unflatten(1, (groups, -1)).transpose(0, 1).flatten()
    y = geometry.convolve(x, weight, bias)
    return _rows(y, lambda y, channels: y.unflatten(channels, (groups, draws, -1)), draw_at=1)


def loop(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    draws = weight.shape[0]
    rows = x.chunk(draws) if folded else (x,) * draws
    return torch.cat([geometry.convolve(rows[s], weight[s], None if bias is None else bias[s]) for s in range(draws)])


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    draws, out_channels, _, *kernel = weight.shape
    groups, rank = geometry.groups, len(kernel)
    patches = _patches(x, kernel, geometry)  # [g, N, out..., kernel..., C/g]
    out, taken = patches.shape[2 : 2 + rank], patches.shape[2 + rank :].numel()
    weight = weight.unflatten(1, (groups, -1)).movedim(3, -1).flatten(3)  # [S, g, O/g, taken]
    if folded:
        y = patches.reshape(groups, draws, -1, taken) @ weight.permute(1, 0, 3, 2)  # [g, S, B·out, O/g]
        y = y.permute(1, 2, 0, 3)
    else:
        y = patches.reshape(groups, -1, taken) @ weight.permute(1, 3, 0, 2).flatten(2)  # [g, B·out, S·O/g]
        y = y.unflatten(2, (draws, -1)).permute(2, 1, 0, 3)
    y = y.flatten(2)  # [S, B·out, O]
    if bias is not None:
        y = y + bias[:, None]
    y = y.reshape(-1, *out, out_channels).contiguous().movedim(-1, 1)
    return y if channels_last(x) else y.contiguous()


def _patches(x: Tensor, kernel: Sequence[int], geometry: Geometry) -> Tensor:
    """What a kernel sees at each place: [N, C, ...] -> [g, N, out..., kernel..., C/g]."""
    rank = len(kernel)
    patches = F.pad(x, [size for size in reversed(geometry.padding) for _ in range(2)])
    for dim, (size, step) in enumerate(zip(kernel, geometry.stride), start=2):
        patches = patches.unfold(dim, size, step)
    patches = patches.unflatten(1, (geometry.groups, -1))  # [N, g, C/g, out..., kernel...]
    return patches.permute(1, 0, *range(3, 3 + 2 * rank), 2).contiguous()


WAYS: dict[str, Way] = {"grouped": grouped, "loop": loop, "matmul": matmul}


def channels_last(x: Tensor) -> bool:
    """Whether the channels of [N, C, ...] are next to each other in memory, and its positions are not."""
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def _beside(x: Tensor, draws: int) -> Tensor:
    """[S·B, C, ...] -> [B, S·C, ...], in the memory format of ``x``."""
    if channels_last(x):
        return x.movedim(1, -1).unflatten(0, (draws, -1)).movedim(0, -2).flatten(-2).movedim(-1, 1)
    return x.unflatten(0, (draws, -1)).transpose(0, 1).flatten(1, 2)


def _rows(y: Tensor, split: Callable[[Tensor, int], Tensor], draw_at: int) -> Tensor:
    """[B, channels, ...] -> [S·B, O, ...], where ``split`` takes the channels apart and the draws are part ``draw_at``."""
    if channels_last(y):
        y = split(y.movedim(1, -1), -1).movedim(-2, 0)  # [S, B, ..., (g,) O/g]
        return y.flatten(-1 - draw_at).flatten(0, 1).contiguous().movedim(-1, 1)
    y = split(y, 1).movedim(1 + draw_at, 0)  # [S, B, (g,) O/g, ...]
    return y.flatten(2, 2 + draw_at).flatten(0, 1)
