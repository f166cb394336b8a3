"""Convolutions with all weight draws in one call, in the fastest of three ways. All agree up to rounding.

    y_s = W_s * x_s + b_s,   s = 1..S

x        [S·B, C, ...] if ``folded``, else [B, C, ...] shared by all draws
weight   [S, O, C/g, ...], bias [S, O] or None
returns  [S·B, O, ...]; of images, with the channels last in memory if those of ``x`` are

grouped  one convolution: folded draws become its groups, draws that share their input its output channels
loop     one convolution for each draw
matmul   patches of the input side by side in memory, then one batched matrix product

Predictions measure which way is fastest, at first use and on the input at hand. The choice is cached for each
combination of device, threads, type and shapes; batches of 2^k+1 to 2^(k+1) inputs count as one shape. A fixed rule
decides for convolutions that are too small to measure, and for everything outside of predictions: training must not
depend on a clock, because a run that was killed has to end bit for bit as one that was not. The environment variable
ABNN_CONV (grouped, loop or matmul) fixes the way for everything.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.errors import unknown

VARIABLE = "ABNN_CONV"
SMALL = 2**24  # multiplications; fewer take too little time to tell ways apart
CACHED = 3 * 2**20  # bytes of input and weights up to which moving them costs less than starting more convolutions
HOPELESS = 1.7  # a way that takes this many times as long as the best on a part of the batch gets no second trial
MARGIN = 0.95  # another way is chosen if it takes at most this share of the time of the rule's way
ROUNDS, LONG = 3, 0.05  # timed calls of each way; a way that takes longer than LONG seconds is timed once
AHEAD = 8_000_000  # clock cycles, some milliseconds: enough for the host to start the kernels of a loop

_choices: dict[tuple, str] = {}


@dataclass(frozen=True)
class Geometry:
    """The arguments of torch's convolutions beside input and weights."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    groups: int = 1

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, groups: int | None = None) -> Tensor:
        function = (F.conv1d, F.conv2d, F.conv3d)[len(self.stride) - 1]
        groups = self.groups if groups is None else groups
        return function(x, weight, bias, stride=self.stride, padding=self.padding, groups=groups)


Way = Callable[[Tensor, Tensor, Tensor | None, Geometry, bool], Tensor]


def grouped(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    """One convolution for all draws, see the module."""
    draws, groups = weight.shape[0], geometry.groups
    if folded:
        flat = None if bias is None else bias.flatten()
        y = geometry.convolve(_draws_to_channels(x, draws), weight.flatten(0, 1), flat, draws * groups)
        return _channels_to_draws(y, lambda y, channels: y.unflatten(channels, (draws, -1)), draw_at=0)
    # Output channels are ordered group, draw, channel within the group.
    weight = weight.unflatten(1, (groups, -1)).transpose(0, 1).flatten(0, 2)
    bias = None if bias is None else bias.unflatten(1, (groups, -1)).transpose(0, 1).flatten()
    y = geometry.convolve(x, weight, bias)
    return _channels_to_draws(y, lambda y, channels: y.unflatten(channels, (groups, draws, -1)), draw_at=1)


def loop(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    """One convolution for each draw, see the module."""
    draws = weight.shape[0]
    rows = x.chunk(draws) if folded else (x,) * draws
    return torch.cat([geometry.convolve(rows[s], weight[s], None if bias is None else bias[s]) for s in range(draws)])


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    """One batched matrix product with patches of the input, see the module."""
    draws, out_channels, _, *kernel = weight.shape
    groups, rank = geometry.groups, len(kernel)
    patches = _patches(x, kernel, geometry)  # [g, N, out..., kernel..., C/g]
    out, patch_size = patches.shape[2 : 2 + rank], patches.shape[2 + rank :].numel()
    weight = weight.unflatten(1, (groups, -1)).movedim(3, -1).flatten(3)  # [S, g, O/g, patch_size]
    if folded:
        y = patches.reshape(groups, draws, -1, patch_size) @ weight.permute(1, 0, 3, 2)  # [g, S, B·out, O/g]
        y = y.permute(1, 2, 0, 3)
    else:
        y = patches.reshape(groups, -1, patch_size) @ weight.permute(1, 3, 0, 2).flatten(2)  # [g, B·out, S·O/g]
        y = y.unflatten(2, (draws, -1)).permute(2, 1, 0, 3)
    y = y.flatten(2)  # [S, B·out, O]
    if bias is not None:
        y = y + bias[:, None]
    y = y.reshape(-1, *out, out_channels).contiguous().movedim(-1, 1)
    return y if channels_last(x) else y.contiguous()


def _patches(x: Tensor, kernel: Sequence[int], geometry: Geometry) -> Tensor:
    """Return the part of the input under the kernel at each place: [N, C, ...] -> [g, N, out..., kernel..., C/g]."""
    rank = len(kernel)
    patches = F.pad(x, [size for size in reversed(geometry.padding) for _ in range(2)])
    for dim, (size, step) in enumerate(zip(kernel, geometry.stride), start=2):
        patches = patches.unfold(dim, size, step)
    patches = patches.unflatten(1, (geometry.groups, -1))  # [N, g, C/g, out..., kernel...]
    return patches.permute(1, 0, *range(3, 3 + 2 * rank), 2).contiguous()


WAYS: dict[str, Way] = {"grouped": grouped, "loop": loop, "matmul": matmul}


def channels_last(x: Tensor) -> bool:
    """Return whether the channels of [N, C, ...] are next to each other in memory, and its positions are not."""
    return not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def _draws_to_channels(x: Tensor, draws: int) -> Tensor:
    """[S·B, C, ...] -> [B, S·C, ...], in the memory format of ``x``."""
    if channels_last(x):
        return x.movedim(1, -1).unflatten(0, (draws, -1)).movedim(0, -2).flatten(-2).movedim(-1, 1)
    return x.unflatten(0, (draws, -1)).transpose(0, 1).flatten(1, 2)


def _channels_to_draws(y: Tensor, split: Callable[[Tensor, int], Tensor], draw_at: int) -> Tensor:
    """[B, channels, ...] -> [S·B, O, ...]. ``split`` takes the channels apart; the draws are part ``draw_at``."""
    if channels_last(y):
        y = split(y.movedim(1, -1), -1).movedim(-2, 0)  # [S, B, ..., (g,) O/g]
        return y.flatten(-1 - draw_at).flatten(0, 1).contiguous().movedim(-1, 1)
    y = split(y, 1).movedim(1 + draw_at, 0)  # [S, B, (g,) O/g, ...]
    return y.flatten(2, 2 + draw_at).flatten(0, 1)


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    """Return y_s = W_s * x_s + b_s for all draws, in the way that :func:`choose` returns."""
    return WAYS[choose(x, weight, bias, geometry, folded)](x, weight, bias, geometry, folded)


def choose(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> str:
    """Return the name of the way to convolve, see the module."""
    if name := os.environ.get(VARIABLE):
        if name not in WAYS:
            raise unknown(VARIABLE, name, WAYS)
        return name
    if torch.compiler.is_compiling():
        return "grouped"  # one operation for every batch, since a compiler cannot measure; on an H200 the fastest
    if not torch.is_inference_mode_enabled() or torch.are_deterministic_algorithms_enabled():
        return rule(x, weight, folded)
    batch = len(x) // len(weight) if folded else len(x)
    kind = x.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    key = (
        x.device, torch.get_num_threads(), x.dtype, (batch - 1).bit_length(), tuple(x.shape[1:]), x.stride()[1] == 1,
        tuple(weight.shape), weight.dtype, bias is None, geometry, folded, autocast,
    )  # fmt: skip
    if key not in _choices:
        positions = x[0, 0].numel() / math.prod(geometry.stride)
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if batch * weight.numel() * positions < SMALL or capturing:
            return rule(x, weight, folded)
        # Threads that measure at the same time must agree, so the first result stays.
        _choices.setdefault(key, _measure(x, weight, bias, geometry, folded))
    return _choices[key]


def rule(x: Tensor, weight: Tensor, folded: bool) -> str:
    """Return the way without measuring.

    On a CPU, folded draws have to be moved in memory for one convolution. That pays as long as a cache holds them.
    """
    if x.device.type != "cpu" or not folded:
        return "grouped"
    moved_bytes = x.numel() * x.element_size() + weight.numel() * weight.element_size()
    return "grouped" if moved_bytes <= CACHED else "loop"


def _measure(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> str:
    """Return the fastest way: all ways on an eighth of the batch first, then the promising ones on all of it."""
    rows = x.unflatten(0, (len(weight), -1)) if folded else x[None]
    part = rows[:, : -(-rows.shape[1] // 8)].flatten(0, 1)

    def calls(rows: Tensor) -> dict[str, Callable[[], object]]:
        return {name: lambda way=way: way(rows, weight, bias, geometry, folded) for name, way in WAYS.items()}  # type: ignore[misc]

    first = times_of(calls(part), x.device, rounds=1)
    bound = HOPELESS * min(first.values())
    candidates = {name: call for name, call in calls(x).items() if first[name] <= bound}
    if len(candidates) == 1:
        return next(iter(candidates))
    times = times_of(candidates, x.device, ROUNDS)
    preferred, best = rule(x, weight, folded), min(times, key=lambda name: times[name])
    return preferred if preferred in times and times[best] > MARGIN * times[preferred] else best


def times_of(calls: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the seconds of the fastest call of each, after one that does not count.

    They take turns: machines drift.
    """
    times = {name: float("inf") for name in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        for name, call in calls.items():
            if number == 0 or times[name] < LONG:
                times[name] = min(times[name], _timed(call, device))
    return times


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call; on CUDA those of the device alone, for a graph repeats no work of the host."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(AHEAD)  # the device waits until the host has started everything
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000
    started = time.perf_counter()
    call()
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
    return time.perf_counter() - started
