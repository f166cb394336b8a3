"""Images that are changed but can still be read: many kinds of change, mild ones and hard ones.

Every kind is a function of a batch with values in [0, 1], a strength in [0, 1], and random numbers; ``MILD`` and ``HARD`` list them by
name, at the end. Hard kinds are always at their strongest: people still read most of them, networks few. A kind may return values
outside [0, 1], which are clipped, and may use the other images of its batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.outliers.base import Outliers
from abnn.outliers.leaves import leaf_scenes
from abnn.outliers.random import Rng
from abnn.outliers.style import Style, scaled, warped

Kind = Callable[[Tensor, float, Rng], Tensor]
GROUPS = 8
"""So many groups of a batch are changed in ways of their own, or as many as leave two images to each."""
SAME = 1e-5
"""An image none of whose values moved by more than this share of their range is the same."""
SORTED = 2**23  # values of a batch among which a quantile is looked for: torch takes at most 2^24


class Changed(Outliers):
    """Every group of a batch is changed in one way, or in two.

    Mild kinds change a group by the mean of its severities, over the upper end of the pair; hard kinds change it fully, and
    have the severity of that end. A share ``hard`` of the groups gets a hard kind, of small images a smaller one, see
    :func:`bearable`. The label still holds, so that severities end low. Values stay in the range. An image that comes out as it
    was has severity 0: a kind that takes from other images finds nothing in a batch of one.
    """

    name = "changed"
    forms = ("image",)
    limits = (("hard", 0, 1),)
    capturable = False
    severity: tuple[float, float] = (0.015, 0.1)
    hard: float = 0.5

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        severity = self.choose_severity(len(x), severity, rng)
        unit, low, span = self.in_unit_range(x)
        most = max(self.severity[1], 1e-9)
        parts, severities = [], []
        for part, own in zip(groups_of(unit), groups_of(severity)):
            if rng.number() < self.hard * bearable(x):
                parts.append(HARD[rng.choice([*HARD])](part, 1.0, rng))
                severities.append(torch.full_like(own, most))
                continue
            amount = float(own.mean()) / most
            twice = rng.number() < 0.5
            for _ in range(1 + twice):
                part = MILD[rng.choice([*MILD])](part, 0.7 * amount if twice else amount, rng)
            parts.append(part)
            severities.append(own.mean().expand(len(own)))
        changed = torch.cat(parts).clamp(0, 1)
        same = (severity == 0) | ((changed - unit).abs().flatten(1).amax(1) <= SAME)
        result = torch.where(per_image(x, same), x, low + span * changed)
        return result, torch.cat(severities).masked_fill(same, 0.0)


def groups_of(values: Tensor) -> tuple[Tensor, ...]:
    """Return the groups of a batch, of nearly equal sizes; some kinds of change need two images."""
    return values.tensor_split(max(1, min(GROUPS, len(values) // 2)))


def per_image(x: Tensor, values: Tensor) -> Tensor:
    """Return one value for each image of ``x``, shaped to broadcast over it."""
    return values.view(-1, *[1] * (x.ndim - 1))


def small(x: Tensor) -> bool:
    """Return whether an image has so few places that a strong change leaves nothing of it."""
    return min(x.shape[2:]) < 40


def bearable(x: Tensor) -> float:
    """Return the share of hard changes that images of this size can bear: none at 8 places a side, all from 40 on."""
    return min(1.0, max(0.0, (min(x.shape[2:]) - 8) / 32))


def resized(x: Tensor, factor: float) -> Tensor:
    """Return the images as if seen at a lower resolution."""
    size = [max(min(4, side), round(side / factor)) for side in x.shape[2:]]
    coarse = F.interpolate(x, size=size, mode="bilinear", align_corners=False, antialias=True)
    return F.interpolate(coarse, size=x.shape[2:], mode="bilinear", align_corners=False)


def blurred(x: Tensor, sigma: float) -> Tensor:
    """Return the images through a Gaussian filter of so many places, in small images of fewer."""
    reach = min(int(3 * sigma + 0.5), min(x.shape[2:]) - 1)
    if reach < 1:
        return x
    places = torch.arange(-reach, reach + 1, device=x.device, dtype=x.dtype)
    weights = torch.exp(-places.square() / (2 * sigma * sigma))
    weights, channels = weights / weights.sum(), x.shape[1]
    padded = F.pad(x, (reach,) * 4, mode="reflect")
    rows = F.conv2d(padded, weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)
    return F.conv2d(rows, weights.view(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)


def grey(x: Tensor) -> Tensor:
    return x.mean(1, keepdim=True).expand_as(x)


def spectrum_of_others(x: Tensor, share: float) -> Tensor:
    """Return images with a share of the amplitudes of the next image; their phases, where the shapes are, stay."""
    own = torch.fft.rfft2(x.float())
    size = torch.lerp(own.abs(), own.abs().roll(1, 0), share)
    return torch.fft.irfft2(torch.polar(size, own.angle()), s=x.shape[2:]).to(x.dtype).clamp(0, 1)


def tiles(x: Tensor, rng: Rng) -> Tensor:
    """Return a small part of each image and its mirror images, repeated."""
    height, width = x.shape[2:]
    count = 3 + int(rng.number() * (3 if small(x) else 6))
    down, across = (max(min(2, side), side // count) for side in (height, width))
    part = x[random_box(x, down, across, rng)]
    part = torch.cat([part, part.flip(3)], 3)
    part = torch.cat([part, part.flip(2)], 2)
    return part.repeat(1, 1, -(-height // (2 * down)), -(-width // (2 * across)))[:, :, :height, :width].contiguous()


def random_box(x: Tensor, down: int, across: int, rng: Rng) -> tuple[slice, ...]:
    """Return the index of a box of ``down`` by ``across`` places, which is at the same random place in every image."""
    top, left = (int(rng.number() * (side - own + 1)) for side, own in zip(x.shape[2:], (down, across)))
    return slice(None), slice(None), slice(top, top + down), slice(left, left + across)


def clutter(x: Tensor, rng: Rng) -> Tensor:
    """Return something else of the same size: leaves, or tiles of the next image."""
    return leaf_scenes(x.shape, 24, rng) if rng.number() < 0.5 else tiles(x.roll(1, 0), rng)


def _soft(x: Tensor, amount: float, rng: Rng) -> Tensor:
    return resized(x, 1 + amount * (1.5 if small(x) else 5) * rng.number(0.5, 1))


def _noise(x: Tensor, amount: float, rng: Rng) -> Tensor:
    return x + 0.3 * amount * rng.number(0.3, 1) * rng.normal(*x.shape)


def _contrast(x: Tensor, amount: float, rng: Rng) -> Tensor:
    mean = x.mean((1, 2, 3), keepdim=True)
    factor, shift = (amount * per_image(x, rng.between(-1, 1, len(x))) for _ in range(2))
    return (x - mean) * torch.exp(1.4 * factor) + mean + 0.3 * shift


def _gamma(x: Tensor, amount: float, rng: Rng) -> Tensor:
    return x.clamp_min(1e-4).pow(torch.exp(1.1 * amount * per_image(x, rng.between(-1, 1, len(x)))))


def _colours(x: Tensor, amount: float, rng: Rng) -> Tensor:
    tint = torch.exp(0.7 * amount * rng.normal(*x.shape[:2]))[..., None, None]
    return torch.lerp(x, grey(x), amount) if rng.number() < 0.5 and x.shape[1] > 1 else x * tint


def _levels(x: Tensor, amount: float, rng: Rng) -> Tensor:
    count = max(2, round(2 + (1 - amount) * 10))
    return (x * (count - 1) + 0.5).floor() / (count - 1)


def _solarised(x: Tensor, amount: float, rng: Rng) -> Tensor:
    limit = 1 - 0.6 * amount
    return torch.where(x > limit, 2 * limit - x, x)


def _turned(x: Tensor, amount: float, rng: Rng) -> Tensor:
    angle = 0.8 * amount * rng.between(-1, 1, len(x))
    none = torch.zeros_like(angle)
    return warped(x, [angle.cos(), -angle.sin(), none, angle.sin(), angle.cos(), none])


def _sheared(x: Tensor, amount: float, rng: Rng) -> Tensor:
    across, down = (amount * rng.between(-1, 1, len(x)) for _ in range(2))
    one = torch.ones_like(across)
    return warped(x, [one, 0.7 * across, 0 * one, 0.3 * down, one, 0 * one])


def _stretched(x: Tensor, amount: float, rng: Rng) -> Tensor:
    wide, tall = (torch.exp(0.6 * amount * rng.between(-1, 1, len(x))) for _ in range(2))
    return scaled(x, wide, tall)


def _zoomed(x: Tensor, amount: float, rng: Rng) -> Tensor:
    side = 1 - 0.6 * amount * rng.uniform(len(x))
    left, top = ((1 - side) * rng.between(-1, 1, len(x)) for _ in range(2))
    return warped(x, [side, 0 * side, left, 0 * side, side, top])


def _shrunk(x: Tensor, amount: float, rng: Rng) -> Tensor:
    side = 1 + amount * rng.uniform(len(x))
    return scaled(x, side, side, "border" if rng.number() < 0.5 else "zeros")


def _covered(x: Tensor, amount: float, rng: Rng) -> Tensor:
    cover = leaf_scenes(x.shape, 12, rng) if rng.number() < 0.5 else x.roll(1, 0)
    down, across = (min(side, int(side * math.sqrt(amount / 2)) + 1) for side in x.shape[2:])
    box, x = random_box(x, down, across, rng), x.clone()
    x[box] = cover[box]
    return x


def _sharp(x: Tensor, amount: float, rng: Rng) -> Tensor:
    return x + (1 + 6 * amount) * amount * (x - blurred(x, 1 + (0 if small(x) else 2 * rng.number())))


def _very_soft(x: Tensor, amount: float, rng: Rng) -> Tensor:
    """Return the images out of focus; small ones, and one half of the others, with noise as well."""
    soft = _soft(x, 1.4, rng).clamp(0, 1)
    return _noise(soft, 0.5, rng) if small(x) or rng.number() < 0.5 else soft


def _two_colours(x: Tensor, amount: float, rng: Rng) -> Tensor:
    value = blurred(x.mean(1, keepdim=True), 1.0)
    some = value.flatten(1)[:, :: 1 + value.numel() // SORTED]
    limit = per_image(x, some.quantile(rng.number(0.35, 0.65), dim=1))
    one, other = (rng.uniform(*x.shape[:2])[..., None, None] for _ in range(2))
    return torch.lerp(other, one, torch.sigmoid(40 * (value - limit)))


def _far_away(x: Tensor, amount: float, rng: Rng) -> Tensor:
    side = torch.full((len(x),), (2.0 if small(x) else 3.0) * rng.number(0.8, 1.2), device=x.device, dtype=x.dtype)
    return scaled(x, side, side, "border" if rng.number() < 0.5 else "zeros")


def _tone_curve(x: Tensor, amount: float, rng: Rng) -> Tensor:
    knots = rng.uniform(*x.shape[:2], 6)
    place = (x * 5).clamp(0, 5 - 1e-4).flatten(2)
    below = place.floor().long()
    start, end = knots.gather(2, below), knots.gather(2, below + 1)
    return torch.lerp(start, end, place - below).view_as(x)


def _elastic(x: Tensor, amount: float, rng: Rng) -> Tensor:
    field = F.interpolate(rng.normal(len(x), 2, 10, 10), size=x.shape[2:], mode="bicubic", align_corners=False)
    same = torch.eye(2, 3, device=x.device, dtype=x.dtype).expand(len(x), 2, 3)
    grid = F.affine_grid(same, list(x.shape), align_corners=False) + 0.06 * field.permute(0, 2, 3, 1)
    return F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def _details(x: Tensor, amount: float, rng: Rng) -> Tensor:
    fine = x - blurred(x, rng.number(0.8, 2) if small(x) else rng.number(1.5, 4.5))
    return 0.5 + rng.number(2, 5) * (grey(fine) if rng.number() < 0.5 else fine)


def _erased(x: Tensor, amount: float, rng: Rng) -> Tensor:
    x = x.clone()
    for _ in range(6):
        down, across = (max(1, int(side * rng.number(0.12, 0.3))) for side in x.shape[2:])
        box, size = random_box(x, down, across, rng), (1, 1) if rng.number() < 0.5 else (down, across)
        x[box] = rng.uniform(*x.shape[:2], *size)
    return x


def _several(x: Tensor, amount: float, rng: Rng) -> Tensor:
    for _ in range(3):
        x = MILD[rng.choice([*MILD])](x, rng.number(0.3, 0.9), rng).clamp(0, 1)
    return x


def _specks(x: Tensor, amount: float, rng: Rng) -> Tensor:
    where, value = (rng.uniform(len(x), 1, *x.shape[2:]) for _ in range(2))
    return torch.where(where < rng.number(0.15, 0.45), value.round(), x)


def _style(x: Tensor, amount: float, rng: Rng) -> Tensor:
    maker = Style()
    maker.prepare(0.0, 1.0)
    dial = torch.full((len(x), 1, 1, 1), 0.3 * rng.number(0.5, 1), device=x.device, dtype=x.dtype)
    for _ in range(1 + (rng.number() < 0.5)):
        x = maker.change(x, dial, rng).clamp(0, 1)
    return x


MILD: dict[str, Kind] = {
    "soft": _soft,
    "noise": _noise,
    "dark": lambda x, amount, rng: x * (1 - 0.85 * amount * per_image(x, rng.uniform(len(x)))),
    "contrast": _contrast,
    "gamma": _gamma,
    "colours": _colours,
    "levels": _levels,
    "solarised": _solarised,
    "turned": _turned,
    "sheared": _sheared,
    "stretched": _stretched,
    "zoomed": _zoomed,
    "shrunk": _shrunk,
    "covered": _covered,
    "spectrum": lambda x, amount, rng: spectrum_of_others(x, amount * rng.number(0.5, 1)),
    "sharp": _sharp,
    "overlaid": lambda x, amount, rng: torch.lerp(x, clutter(x, rng), 0.45 * amount),
}
HARD: dict[str, Kind] = {
    "very soft": _very_soft,
    "very noisy": lambda x, amount, rng: x + rng.number(0.2, 0.5) * rng.normal(*x.shape),
    "spectrum of another": lambda x, amount, rng: spectrum_of_others(x, 1.0),
    "faint": lambda x, amount, rng: grey(x) * rng.number(0.08, 0.25) + rng.number(0, 0.7),
    "two colours": _two_colours,
    "far away": _far_away,
    "tone curve": _tone_curve,
    "elastic": _elastic,
    "details alone": _details,
    "erased": _erased,
    "much overlaid": lambda x, amount, rng: torch.lerp(x, clutter(x, rng), rng.number(0.4, 0.65)),
    "several changes": _several,
    "inverted": lambda x, amount, rng: 1 - x,
    "specks": _specks,
    "style": _style,
}
