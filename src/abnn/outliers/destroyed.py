"""Images of which nothing is left to read, in many ways.

Many are made of the data at hand, so that colours and sizes do not give them away. Every kind is a function of a batch with values in
[0, 1] and random numbers; ``KINDS`` lists them by name, at the end. Values stay in the range, except that one half of
"noise" leaves it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.outliers.base import Outliers
from abnn.outliers.blobs import blobs, smooth_background
from abnn.outliers.changed import groups_of, per_image, random_box, small, tiles
from abnn.outliers.leaves import leaf_scenes
from abnn.outliers.patches import shuffle_patches
from abnn.outliers.random import Rng

Kind = Callable[[Tensor, Rng], Tensor]


class Destroyed(Outliers):
    """Every group of a batch is destroyed in a way of its own, from a random one on, with severity 1; a caller's lower one blends that in."""

    name = "destroyed"
    forms = ("image",)
    capturable = False
    severity: tuple[float, float] = (1.0, 1.0)

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        severity = self.choose_severity(len(x), severity, rng)
        unit, low, span = self.in_unit_range(x)
        first = int(rng.number() * len(KINDS))
        names = [*KINDS]
        parts = [KINDS[names[(first + n) % len(names)]](part, rng) for n, part in enumerate(groups_of(unit))]
        return torch.lerp(x, low + span * torch.cat(parts), per_image(x, severity).to(x.dtype)), severity


def _noise(x: Tensor, rng: Rng) -> Tensor:
    if rng.number() < 0.15:
        return rng.uniform(*x.shape)
    noisy = x * rng.number() + per_image(x, rng.between(0.3, 2.0, len(x))) * rng.normal(*x.shape)
    return noisy if rng.number() < 0.5 else noisy.clamp(0, 1)


def _patches(x: Tensor, rng: Rng) -> Tensor:
    counts = torch.tensor([4, 8] if small(x) else [4, 8, 16], device=x.device)
    chosen = counts[rng.integers(len(counts), len(x))]
    return shuffle_patches(x, chosen, torch.ones(len(x), device=x.device), int(counts.max()), rng)


def _enlarged(x: Tensor, rng: Rng) -> Tensor:
    down, across = (max(min(3, side), int(side / rng.number(5, 14))) for side in x.shape[2:])
    part = x[random_box(x, down, across, rng)]
    return F.interpolate(part, size=x.shape[2:], mode="bicubic", align_corners=False).clamp(0, 1)


def _phases(x: Tensor, rng: Rng) -> Tensor:
    own, other = torch.fft.rfft2(x.float()), torch.fft.rfft2(rng.uniform(len(x), 1, *x.shape[2:]).float())
    mixed = torch.fft.irfft2(torch.polar(own.abs(), other.angle().expand_as(own)), s=x.shape[2:])
    std, mean = torch.std_mean(x, (2, 3), keepdim=True, correction=0)
    spread, centre = torch.std_mean(mixed, (2, 3), keepdim=True, correction=0)
    return ((mixed - centre) / (spread + 1e-6) * std + mean).to(x.dtype).clamp(0, 1)


def _strokes(x: Tensor, rng: Rng) -> Tensor:
    """Return three thick curves of one colour on a flat ground."""
    batch, channels, height, width = x.shape
    ends = rng.uniform(batch, 3, 3, 2)
    t = torch.linspace(0, 1, 24, device=x.device, dtype=x.dtype).view(1, 1, -1, 1)
    curve = (1 - t) ** 2 * ends[:, :, 0:1] + 2 * t * (1 - t) * ends[:, :, 1:2] + t * t * ends[:, :, 2:3]
    points = curve.reshape(batch, 1, -1, 2)
    sides = [torch.linspace(0, 1, min(side, 56), device=x.device, dtype=x.dtype) for side in (height, width)]
    grid = torch.stack(torch.meshgrid(*sides, indexing="ij"), -1).view(1, -1, 1, 2)
    nearest = (grid - points).square().sum(3).amin(2).sqrt().view(batch, 1, *map(len, sides))
    inside = torch.sigmoid(60 * (per_image(x, rng.between(0.02, 0.08, batch)) - nearest))
    inside = F.interpolate(inside, size=(height, width), mode="bilinear", align_corners=False)
    vivid = per_image(x, rng.uniform(batch))
    ground, ink = (
        torch.lerp(rng.uniform(batch, 1, 1, 1).expand(-1, channels, 1, 1), rng.uniform(batch, channels, 1, 1), vivid)
        for _ in range(2)
    )
    return torch.lerp(ground, ink, inside)


def _pieces(x: Tensor, rng: Rng) -> Tensor:
    """Return a grid whose cells come from different images of the batch."""
    batch, channels, height, width = x.shape
    count = rng.choice([2, 4] if small(x) else [2, 4, 7])
    down, across = height // count, width // count
    if not down or not across:
        return smooth_background(x.shape, rng)
    cells = x[:, :, : down * count, : across * count].reshape(batch, channels, count, down, count, across)
    cells = cells.permute(0, 2, 4, 1, 3, 5).reshape(batch, count * count, channels, down, across)
    order = rng.permutations(count * count)
    mixed = torch.stack([cells[rng.permutations(batch), place] for place in order.tolist()], 1)
    whole = mixed.reshape(batch, count, count, channels, down, across).permute(0, 3, 1, 4, 2, 5)
    result = x.clone()
    result[:, :, : down * count, : across * count] = whole.reshape(batch, channels, down * count, across * count)
    return result


KINDS: dict[str, Kind] = {
    "noise": _noise,
    "jumbled places": _patches,
    "blobs": lambda x, rng: blobs(x.shape, rng),
    "background": lambda x, rng: smooth_background(x.shape, rng),
    "leaves": lambda x, rng: leaf_scenes(x.shape, 32, rng),
    "tiles": tiles,
    "enlarged part": _enlarged,
    "random phases": _phases,
    "strokes": _strokes,
    "pieces of many": _pieces,
}
