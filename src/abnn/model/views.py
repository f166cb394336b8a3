"""Views: a prediction looks at an image as it is and moved by a little, each draw of the weights at one of them.

What a network is sure of should not hang on a pixel: the mean over views is right more often. Draws need passes of their own
anyway, so that views cost little where the first block has an attachment: draw s looks at view s mod V, and only what comes
before the first attachment is computed once for every view. With mean weights there is one draw for each view.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.errors import InputError, explain, whole_number
from abnn.model.inputs import Batch, Inputs

STEPS = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (1, -1), (-1, 1))
"""Down and to the right, in steps; the first view is the image as it is."""
SIDE = 28  # of an image whose step is one pixel


def step(side: int) -> int:
    """In pixels; 0 for images so small that a pixel changes what they show."""
    return round(side / SIDE)


def can_move(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Return whether inputs of this shape (without the batch) can be images with room for views."""
    return len(shape) == 3 and dtype.is_floating_point and any(step(side) > 0 for side in shape[1:])


def check_number(views: object) -> int:
    """A number of views as an int, or an error."""
    number = whole_number(views)
    if number is None or not 1 <= number <= len(STEPS):
        raise InputError(explain("views", repr(views), f"a whole number from 1 to {len(STEPS)}", "1: no shifts."))
    return number


def check_views(views: object, shape: Sequence[int], dtype: torch.dtype) -> int:
    """The number of views, or an error for one that inputs of this shape cannot have."""
    views = check_number(views)
    if views > 1 and not can_move(shape, dtype):
        actual = f"{views} for inputs of shape {tuple(shape)}, {dtype}"
        accepted = f"1, but for images (channels, height, width) with sides of {SIDE // 2 + 1} pixels or more"
        raise InputError(explain("views", actual, accepted, "Leave it out."))
    return views


def views_of(draws: range, views: int) -> tuple[int, ...]:
    """Which view each draw looks at; nothing where all look at the image as it is."""
    of_draws = tuple(draw % views for draw in draws)
    return of_draws if any(of_draws) else ()


def side_by_side(x: Batch, views: tuple[int, ...]) -> Batch:
    """Return all views that occur, one batch after the other in the order of their numbers."""
    if not views:
        return x
    numbers = sorted(set(views))
    if isinstance(x, Inputs):  # what comes beside an image does not move
        return x.map(lambda each: torch.cat([shifted(each, view) if each is x.first else each for view in numbers]))
    return torch.cat([shifted(x, view) for view in numbers])


def shifted(x: Tensor, view: int) -> Tensor:
    """A batch of images moved by the steps of a view; what comes in at the border is the border's value."""
    down, right = (times * step(side) for times, side in zip(STEPS[view], x.shape[2:]))
    if not down and not right:
        return x
    height, width = x.shape[2:]
    pads = (max(right, 0), max(-right, 0), max(down, 0), max(-down, 0))
    padded = F.pad(x, pads, mode="replicate")
    return padded[:, :, max(-down, 0) : max(-down, 0) + height, max(-right, 0) : max(-right, 0) + width]


def batches_in(places: tuple[int, ...]) -> int:
    """Return how many views :func:`side_by_side` has put one after the other; ``places``: that of each draw's view."""
    return max(places, default=0) + 1


def spread(x: Tensor, places: tuple[int, ...]) -> Tensor:
    """From the rows of all views to the rows of all draws, each those of its view."""
    batches = x.unflatten(0, (batches_in(places), -1))
    return torch.cat([batches[place] for place in places])
