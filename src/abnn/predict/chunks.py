"""Cuts a prediction into passes: how many draws and how many inputs at a time.

A pass of s draws, the plain network among them, and b inputs holds about

    s · 2 · noise + max(s · 4 · folded · b, v · 2 · shared · b)   bytes,

``noise`` is the size of the noise of one draw; its weights take as much again. v is the number of views. ``shared`` is
what the widest module before the first attachment reads and writes for one input. ``folded`` is what the widest module
from there on reads and writes for one input and draw. The rules:

* a pass stays below the memory limit;
* many draws take at most a quarter more than ten at a time do, so that a hundred need hardly more memory than ten;
* on the CPU, what a module reads and writes should fit into a cache.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from numbers import Real

import torch

from abnn.errors import InputError, explain
from abnn.model.inputs import Batch, numbers_of
from abnn.model.network import AttachedNetwork

MEMORY_LIMIT = 2**30  # bytes, of a prediction on the CPU
DEVICE_SHARE = 16  # on a device the limit is its memory divided by this
LIVE_SHARED, LIVE = 2, 4  # copies of the widest input and output that exist at once; attachments need more of them
TEN, MORE = 10, 0.25
CACHE, FEWEST = 2**23, 64  # bytes that one module reads and writes; rows below which starting it costs too much
HEAP = 2**26  # bytes before the first attachment: tensors up to 32 MiB stay in the process, see abnn.predict.heap


@dataclass(frozen=True)
class Chunks:
    """Equal parts that cover all draws and all inputs.

    Where sizes do not divide, the last part overlaps the one before.
    """

    draws: list[range]
    inputs: list[slice]


def plan(
    model: AttachedNetwork, x: Batch, draws: int, memory_limit: int | None = None, views: int = 1, plain: bool = False
) -> Chunks:
    """Return the passes for the inputs ``x``, on any device.

    draws  number of draws, which look at ``views`` views
    plain  whether every pass has one draw more, the plain network
    """
    device = model.device
    if memory_limit is None:
        memory_limit = default_limit(device)
    elif not isinstance(memory_limit, Real) or not memory_limit > 0:
        raise InputError(explain("memory_limit", repr(memory_limit), "a positive number of bytes, or None"))
    scale = max(1.0, numbers_of(x) / max(1, numbers_of(model.example)))  # inputs may be larger than the example
    shared, folded = LIVE_SHARED * model.shared_bytes * scale, LIVE * model.folded_bytes * scale
    if model.folds_at_input:
        shared, folded = 0.0, max(LIVE / LIVE_SHARED * shared, folded)
    shared *= views
    rows = memory_limit / max(1.0, folded)
    if device.type == "cpu":
        rows = min(rows, max(FEWEST, LIVE * CACHE / max(1.0, folded)))
    at_once = max(1, min(draws, TEN, int(rows) - plain))
    most = min(rows / (at_once + plain), memory_limit / max(1.0, shared))
    if device.type == "cpu":
        most = min(most, LIVE_SHARED * HEAP / max(1.0, shared))
    batch = max(1, min(len(x), int(most)))
    if draws > at_once == TEN:
        noise, before, after = 2 * model.noise_bytes, shared * batch, folded * batch
        ten = TEN + plain
        most = (1 + MORE) * (ten * noise + max(ten * after, before))
        most = min(most / (noise + after), (most - before) / noise, memory_limit / max(1.0, after))
        at_once = max(TEN, min(draws, int(most) - plain))
    size = parts(draws, at_once)
    if views <= size < draws:  # every pass begins with the first view, so one compilation or capture serves all
        size -= size % views
    draw_ranges = [range(first, first + size) for first in starts(draws, size)]
    size = parts(len(x), batch)
    return Chunks(draw_ranges, [slice(first, first + size) for first in starts(len(x), size)])


@functools.cache
def default_limit(device: torch.device) -> int:
    """Return the memory limit of a device.

    It is fixed: passes of another size round differently and cannot be replayed.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // DEVICE_SHARE
    return MEMORY_LIMIT


def parts(count: int, most: int) -> int:
    """Return the size of the fewest equal parts with at most ``most`` each."""
    return -(-count // -(-count // most))


def starts(count: int, size: int) -> list[int]:
    """Return the starts of parts of one size that cover ``count``. The last part ends at ``count``."""
    return [min(first, count - size) for first in range(0, count, size)]
