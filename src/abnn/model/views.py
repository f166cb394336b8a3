"""Views: an image as it is, and slightly shifted copies of it. Each draw of the weights looks at one view.

A prediction should not depend on a pixel: the mean over views is right more often. Draw s looks at view s mod V, and
only the layers before the first attachment are computed once for every view. Draws need passes of their own anyway, so
views cost little where the first block has an attachment. With mean weights there is one draw for each view.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.errors import InputError, explain, whole_number
from abnn.model.inputs import Batch, Inputs

STEPS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
"""Shifts of each view, down and to the right, in steps. The first view is the image as it is."""
SIDE = 28  # pixels of an image whose step is one pixel


def step(side: int) -> int:
    """Return the length of a step in pixels; 0 for images so small that one pixel changes what they show."""
    return round(side / SIDE)


def can_move(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Return whether inputs of this shape (without the batch) can be images with room for views."""
    return len(shape) == 3 and dtype.is_floating_point and any(step(side) > 0 for side in shape[1:])


def check_number(views: object) -> int:
    """Return the number of views as an int, or raise an error."""
    number = whole_number(views)
    if number is None or not 1 <= number <= len(STEPS):
        raise InputError(explain("views", repr(views), f"a whole number from 1 to {len(STEPS)}", "1: no shifts."))
    return number


def check_views(views: object, shape: Sequence[int], dtype: torch.dtype) -> int:
    """Return the number of views, or raise an error if inputs of this shape cannot have so many."""
    views = check_number(views)
    if views > 1 and not can_move(shape, dtype):
        actual = f"{views} for inputs of shape {tuple(shape)}, {dtype}"
        accepted = f"1, but for images (channels, height, width) with sides of {SIDE // 2 + 1} pixels or more"
        raise InputError(explain("views", actual, accepted, "Leave it out."))
    return views


def views_of(draws: range, views: int) -> tuple[int, ...]:
    """Return which view each draw looks at; empty if all look at the image as it is."""
    draw_views = tuple(draw % views for draw in draws)
    return draw_views if any(draw_views) else ()


def side_by_side(x: Batch, views: tuple[int, ...]) -> Batch:
    """Return all views that occur, one batch after the other, in the order of their numbers."""
    if not views:
        return x
    numbers = sorted(set(views))
    if isinstance(x, Inputs):  # inputs other than the image do not move
        return x.map(lambda each: torch.cat([shifted(each, view) if each is x.first else each for view in numbers]))
    return torch.cat([shifted(x, view) for view in numbers])


def shifted(x: Tensor, view: int) -> Tensor:
    """Return a batch of images, shifted by the steps of a view. Pixels that come in have the value of the border."""
    down, right = (times * step(side) for times, side in zip(STEPS[view], x.shape[2:]))
    if not down and not right:
        return x
    height, width = x.shape[2:]
    pads = (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0))
    padded = F.pad(x, pads, mode="replicate")
    return padded[:, :, max(-down, 0) : max(-down, 0) + height, max(-right, 0) : max(-right, 0) + width]


def batches_in(places: tuple[int, ...]) -> int:
    """Return how many batches :func:`side_by_side` returns one after the other.

    places  the number of the batch that each draw looks at
    """
    return max(places, default=0) + 1


def spread(x: Tensor, places: tuple[int, ...]) -> Tensor:
    """Return the rows of all draws: for each draw those of its view, from the rows of all views."""
    batches = x.unflatten(0, (batches_in(places), -1))
    return torch.cat([batches[place] for place in places])
