"""Which way of convolving with all draws is fastest here: measured at first use in a prediction, and remembered.

Measured are :data:`abnn.bayes.convolutions.WAYS` on the input at hand, once for each combination of device, threads, type and
shapes, batches of 2^k+1 to 2^(k+1) inputs counting as one. What is too small to be worth it, and everything outside of
predictions, follows a rule instead: training must not depend on a clock, for a run that was killed has to end bit for bit as
one that was not. The environment variable ABNN_CONV (grouped, loop or matmul) fixes the way for everything.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor

from abnn.bayes.convolutions import WAYS, Geometry
from abnn.errors import unknown

VARIABLE = "ABNN_CONV"
SMALL = 2**24  # multiplications that are done before a clock could tell ways apart
CACHED = 3 * 2**20  # bytes of input and weights up to which moving them costs less than starting more convolutions
HOPELESS = 1.7  # a way that takes so many times as long as another on a part of the batch is not tried on all of it
MARGIN = 0.95  # what another way must beat the rule's by: the share of its time
ROUNDS, LONG = 3, 0.05  # timed calls of each way; one that takes longer than so many seconds is timed once
AHEAD = 8_000_000  # clock cycles, some milliseconds, in which the host can start the kernels of a loop

_known: dict[tuple, str] = {}


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> Tensor:
    """y_s = W_s * x_s + b_s for all draws, see :mod:`abnn.bayes.convolutions`."""
    return WAYS[choose(x, weight, bias, geometry, folded)](x, weight, bias, geometry, folded)


def choose(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> str:
    if fixed := os.environ.get(VARIABLE):
        if fixed not in WAYS:
            raise unknown(VARIABLE, fixed, WAYS)
        return fixed
    if torch.compiler.is_compiling():
        return "grouped"  # one operation, whatever the batch, for compilers see no clocks; on an H200 the fastest
    if not torch.is_inference_mode_enabled() or torch.are_deterministic_algorithms_enabled():
        return rule(x, weight, folded)
    batch = len(x) // len(weight) if folded else len(x)
    kind = x.device.type
    autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    key = (
        x.device, torch.get_num_threads(), x.dtype, (batch - 1).bit_length(), tuple(x.shape[1:]), x.stride()[1] == 1,
        tuple(weight.shape), weight.dtype, bias is None, geometry, folded, autocast,
    )  # fmt: skip
    if key not in _known:
        positions = x[0, 0].numel() / math.prod(geometry.stride)
        capturing = x.is_cuda and torch.cuda.is_current_stream_capturing()
        if batch * weight.numel() * positions < SMALL or capturing:
            return rule(x, weight, folded)
        # Threads that measure at the same time must agree: the first result stays.
        _known.setdefault(key, _measure(x, weight, bias, geometry, folded))
    return _known[key]


def rule(x: Tensor, weight: Tensor, folded: bool) -> str:
    """On a CPU, folded draws in one convolution have to be moved in memory, which pays as long as a cache holds them."""
    if x.device.type != "cpu" or not folded:
        return "grouped"
    moved = x.numel() * x.element_size() + weight.numel() * weight.element_size()
    return "grouped" if moved <= CACHED else "loop"


def _measure(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, folded: bool) -> str:
    """The fastest way: a first look on an eighth of the batch, then all that are left on the whole of it."""
    rows = x.unflatten(0, (len(weight), -1)) if folded else x[None]
    part = rows[:, : -(-rows.shape[1] // 8)].flatten(0, 1)

    def calls(rows: Tensor) -> dict[str, Callable[[], object]]:
        return {name: lambda way=way: way(rows, weight, bias, geometry, folded) for name, way in WAYS.items()}  # type: ignore[misc]

    first = times_of(calls(part), x.device, rounds=1)
    bound = HOPELESS * min(first.values())
    left = {name: call for name, call in calls(x).items() if first[name] <= bound}
    if len(left) == 1:
        return next(iter(left))
    times = times_of(left, x.device, ROUNDS)
    usual, best = rule(x, weight, folded), min(times, key=lambda name: times[name])
    return usual if usual in times and times[best] > MARGIN * times[usual] else best


def times_of(calls: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Seconds of the fastest call of each, after one that does not count; taken in turns, for machines drift."""
    times = {name: float("inf") for name in calls}
    for call in calls.values():
        call()
    for number in range(rounds):
        for name, call in calls.items():
            if number == 0 or times[name] < LONG:
                times[name] = min(times[name], _timed(call, device))
    return times


def _timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call; on CUDA those of the device alone, which is what counts when a graph repeats the call."""
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
