"""Changes of style that keep the label: another background, level and contrast, and slightly other shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.outliers.base import SPATIAL, Change
from abnn.outliers.blobs import smooth_field
from abnn.outliers.leaves import leaf_scenes
from abnn.outliers.random import Rng

SCENE_LEAVES = 24


class Style(Change):
    """The same object in another style: what it is can still be read, so that its severity stays low.

    In order: a small affine change (images only), thicker or thinner strokes, blur or sharpening, another gamma, and for
    a share ``composite`` of the samples another background with other levels of background and object: a smooth random
    one, or for a share ``scenes`` of these (images only) a scene of leaves, as clutter behind the object. All of them
    grow with ``severity`` over its upper end; nothing is mirrored or turned by more than a few degrees. A share ``flip``
    of the samples in the upper half changes between bright-on-dark and dark-on-bright. Height and width change by
    factors of up to exp(``size``) each, in small images less.
    """

    name = "style"
    forms = SPATIAL
    limits = (("composite", 0, 1), ("scenes", 0, 1), ("flip", 0, 1), ("size", 0, 1))
    severity: tuple[float, float] = (0.0, 0.3)
    composite: float = 0.7
    scenes: float = 0.5
    flip: float = 0.2
    size: float = 0.6

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        unit, low, span = self.in_unit_range(x)
        amount = dial / self.severity[1] if self.severity[1] > 0 else dial
        if x.ndim == 4:
            unit = small_affine(unit, amount, rng, self.size)
        unit = thicken_or_thin(unit, amount, rng)
        unit = blur_or_sharpen(unit, amount, rng)
        unit = unit.pow(torch.exp(amount * rng.between(-0.5, 0.5, *dial.shape)))
        flipped = (rng.uniform(*dial.shape) < self.flip) & (amount > 0.5)
        unit = torch.where(flipped, 1 - unit, unit)
        composed = rng.uniform(*dial.shape) < self.composite
        unit = torch.where(composed, recompose(unit, amount, rng, self.scenes), unit)
        return low + span * unit


def small_affine(x: Tensor, amount: Tensor, rng: Rng, size: float = 0.6) -> Tensor:
    """Return images after a small affine change, times ``amount``.

    Shear up to 0.2, turn up to 6 degrees, sides times exp(+-size), shift by up to 6 % of the side.
    """
    amount = amount.flatten()
    shear, turn, high, wide, up, left = (amount[:, None] * rng.between(-1.0, 1.0, len(x), 6)).unbind(1)
    size = size * finest(x)  # a small image cannot show a smaller one
    turn, tall, wide = turn * 0.1, torch.exp(size * high), torch.exp(size * wide)
    across = [wide * turn.cos(), 0.2 * shear - turn.sin(), 0.12 * left]
    return warped(x, [*across, turn.sin(), tall * turn.cos(), 0.12 * up], "border")


def warped(x: Tensor, rows: list[Tensor], padding: str = "reflection") -> Tensor:
    """Return images after an affine map; ``rows``: its six numbers for each image."""
    grid = F.affine_grid(torch.stack(rows, 1).view(-1, 2, 3), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def scaled(x: Tensor, wide: Tensor, tall: Tensor, padding: str = "reflection") -> Tensor:
    """Return the images as if seen through a window of other sides: above 1, they shrink."""
    return warped(x, [wide, 0 * wide, 0 * wide, 0 * wide, tall, 0 * wide], padding)


def finest(x: Tensor) -> float:
    """Return how much of a change images of this size can bear: all of it from 26 places per axis on."""
    return min(1.0, min(x.shape[2:]) / 28 + 0.1)


def thicken_or_thin(x: Tensor, amount: Tensor, rng: Rng) -> Tensor:
    """Return values that are part of the way to the largest or smallest of their neighbours (dilation, erosion)."""
    way = rng.between(-1.0, 1.0, *amount.shape)
    reach = amount * way.abs() * finest(x)  # a neighbourhood of 3 is a large part of a stroke in a small image
    return torch.lerp(x, torch.where(way > 0, of_neighbours(x, torch.maximum), of_neighbours(x, torch.minimum)), reach)


def of_neighbours(x: Tensor, better: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the largest, or smallest, of each place and its neighbours; axis by axis."""
    for axis in range(2, x.ndim):
        count = x.shape[axis] - 1
        inner = better(x.narrow(axis, 0, count), x.narrow(axis, 1, count))  # of each pair of neighbours
        first, last = x.narrow(axis, 0, 1), x.narrow(axis, count, 1)
        x = better(torch.cat([first, inner], axis), torch.cat([inner, last], axis))
    return x


def blur_or_sharpen(x: Tensor, amount: Tensor, rng: Rng) -> Tensor:
    """Return values that are nearer to the mean of their neighbours, or farther from it."""
    rank = x.ndim - 2
    padded = F.pad(x, [1, 1] * rank, mode="replicate")
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    way = rng.between(-1.0, 1.0, *amount.shape) * finest(x)
    return torch.lerp(x, pool(padded, 3, stride=1), amount * way).clamp(0, 1)


def border_level(x: Tensor) -> Tensor:
    """Return the median of the outermost values of each channel: the background of most centred objects."""
    edges = [x.select(axis, end) for axis in range(2, x.ndim) for end in (0, -1)]
    level = torch.cat([edge.reshape(*x.shape[:2], -1) for edge in edges], dim=2).median(dim=2).values
    return level.view(*level.shape, *[1] * (x.ndim - 2))


def object_mask(x: Tensor, background: Tensor) -> Tensor:
    """Return how much each place belongs to the object, in [0, 1]: its distance from the background over the largest.

    For anti-aliased shapes of one level on a background of another, bright on dark or dark on bright, this is the
    share of the place that the shape covers.
    """
    distance = (x - background).abs().amax(dim=1, keepdim=True)
    largest = distance.flatten(1).amax(dim=1).view(-1, *[1] * (x.ndim - 1))
    return distance / largest.clamp_min(torch.finfo(x.dtype).tiny)


def recompose(x: Tensor, amount: Tensor, rng: Rng, scenes: float = 0.0) -> Tensor:
    """Return images with background and object at other levels, and a field under the object; values in [0, 1].

    The field is smooth, or for a share ``scenes`` of images a scene of leaves of at most 0.9 of the object's contrast.

    With background level b, object level f and coverage m, an anti-aliased image is ``b (1 - m) + f m``. The result
    ``x + (1 - m) (b' - b) + m (f' - f)`` is the same with other levels, and keeps whatever texture x has besides. The
    new contrast ``f' - b'`` has the sign of the old one and is at least 0.4, so that the object stays readable.
    """
    per_sample = amount.shape
    background = border_level(x)
    mask = object_mask(x, background)
    weight = mask.pow(4)
    places = list(range(2, x.ndim))
    level = (weight * x).sum(places, keepdim=True) / weight.sum(places, keepdim=True).clamp_min(1e-6)

    contrast = rng.between(0.4, 1.0, *per_sample)
    darker = rng.uniform(*per_sample) * (1 - contrast)
    bright_object = (level - background).mean(dim=1, keepdim=True) >= 0
    new_background = torch.where(bright_object, darker, darker + contrast)
    new_level = torch.where(bright_object, darker + contrast, darker)
    if x.shape[1] > 1:
        new_background = new_background + rng.between(-0.15, 0.15, *x.shape[:2], *[1] * len(places))
    depth = 0.6 * contrast * rng.uniform(*per_sample)
    field = new_background + 2 * depth * (smooth_field(x.shape, 3, rng) - 0.5)
    if scenes > 0 and x.ndim == 4:
        scene = leaf_scenes(x.shape, SCENE_LEAVES, rng)
        depth = contrast * rng.between(0.2, 0.9, *per_sample)
        cluttered = new_background + depth * (scene - scene.mean(places, keepdim=True))
        field = torch.where(rng.uniform(*per_sample) < scenes, cluttered, field)
    result = x + amount * ((1 - mask) * (field - background) + mask * (new_level - level))
    return result.clamp(0, 1)
