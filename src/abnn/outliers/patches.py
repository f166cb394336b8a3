"""Shuffled patches, of every sample of a batch at once, each with its own number of patches."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from abnn.outliers.base import SPATIAL, Change
from abnn.outliers.random import Rng


class Patches(Change):
    """Shuffled patches: the more severe, the more of them (share ``severity``) move, and the finer they are.

    The number of patches per axis goes from 2 to ``finest`` in powers of two; around the one that belongs to a
    severity it varies by up to half a power from sample to sample. The values of a sample stay what they were.
    """

    name = "patches"
    forms = SPATIAL
    choices = (("finest", (2, 4, 8, 16, 32)),)
    uses_range = False
    finest: int = 8

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        share, levels = dial.flatten(), self.finest.bit_length() - 2
        power = 1 + (share * levels + rng.between(-0.5, 0.5, len(x))).round().clamp(0, levels)
        return shuffle_patches(x, torch.pow(2.0, power).long(), share, self.finest, rng)


def shuffle_patches(x: Tensor, pieces: Tensor, share: Tensor, most: int, rng: Rng) -> Tensor:
    """Return samples, of which b is cut into ``pieces[b] <= most`` patches per axis; ``share[b]`` of them move.

    They move around a random cycle. No moved patch stays where it was, and every value stays in the sample. Where the
    number of patches does not divide a length, an outer margin stays as it is; an axis shorter than the number of
    patches gets one patch per value.
    """
    channels, size = x.shape[1], x.shape[2:]
    counts = [pieces.clamp(max=length) for length in size]
    slots = [min(most, length) for length in size]
    source = cycle_some(counts, slots, share, rng)

    # Per axis: which patch each place lies in, shaped [B, 1, ..., length, ..., 1].
    numbers, edges = [], []
    inside = torch.ones((1,), dtype=torch.bool, device=x.device)
    for axis, length in enumerate(size):
        place = torch.arange(length, device=x.device).view(1, *[length if a == axis else 1 for a in range(len(size))])
        count = counts[axis].view(-1, *[1] * len(size))
        edge = length // count
        number = (place - (length - count * edge) // 2).div(edge, rounding_mode="floor")
        inside = inside & (number >= 0) & (number < count)
        numbers.append(number.clamp(0, slots[axis] - 1))
        edges.append(edge)

    slot = sum(number * math.prod(slots[axis + 1 :]) for axis, number in enumerate(numbers))
    assert isinstance(slot, Tensor)
    origin = source.gather(1, slot.flatten(1)).view_as(slot)
    # A place takes its value from the same place within the origin patch: a step of whole patches along each axis.
    steps = torch.zeros_like(slot)
    for axis, (number, edge) in enumerate(zip(numbers, edges, strict=True)):
        origin_number = origin // math.prod(slots[axis + 1 :]) % slots[axis]
        steps = steps + (origin_number - number) * edge * math.prod(size[axis + 1 :])
    index = torch.arange(math.prod(size), device=x.device) + torch.where(inside, steps, 0).flatten(1)
    return x.flatten(2).gather(2, index[:, None].expand(-1, channels, -1)).view_as(x)


def cycle_some(counts: list[Tensor], slots: list[int], share: Tensor, rng: Rng) -> Tensor:
    """Return for each slot of a grid where its content comes from: a random cycle through ``share`` of the patches.

    The grid has ``slots`` places per axis, of which sample b uses the first ``counts[axis][b]``; the rest stay.
    """
    used = torch.ones((len(share), 1), dtype=torch.bool, device=share.device)
    for count, slot in zip(counts, slots, strict=True):
        row = torch.arange(slot, device=share.device) < count[:, None]
        used = (used[:, :, None] & row[:, None]).flatten(1)
    # Unused slots sort last, so that `order` begins with the patches in random order.
    order = torch.where(used, rng.uniform(*used.shape), 2.0).argsort(dim=1)
    chosen = (share * used.sum(dim=1)).ceil().long()[:, None]
    position = torch.arange(used.shape[1], device=share.device).expand_as(order)
    following = torch.where(position < chosen - 1, position + 1, torch.where(position == chosen - 1, 0, position))
    return torch.zeros_like(order).scatter(1, order, order.gather(1, following))
