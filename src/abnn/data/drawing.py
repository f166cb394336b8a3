"""A digit drawn with a pen, brought into the form of the embedded digits: see :mod:`abnn.data.digits`.

ink      every pixel on the far side of Otsu's threshold from the paper; the paper is what most of the border shows
specks   connected parts smaller than a twentieth of the largest are dropped
strokes  of a thin pen are thickened, to about those of the thinnest printed digits
box      the bounding box of the ink, stretched to fill 32 x 32 as the printed digits do
blocks   the share of ink in each 4 x 4 block: 8 x 8 values, bright on dark
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from abnn.data.form import InputForm
from abnn.errors import InputError, explain

if TYPE_CHECKING:
    from torch import Tensor

CLASS_NAMES = tuple("0123456789")

BOX = 32
SPECK = 0.05
NARROWING, NARROWEST = 0.85, 12  # as of the printed digits
THINNEST = 0.14  # width of a stroke, as a share of the longer side of the ink
WORKING_SIDE = 512  # larger drawings are reduced first; 16 times the box is plenty


class NoInkError(InputError):
    """A drawing without anything on it."""


def reads_drawings(model: Any) -> bool:
    """Whether the model reads inputs of the form of the embedded digits: 1 x 8 x 8, and classes named 0 to 9."""
    names = getattr(model, "extra", {}).get("class_names")
    own = tuple(model.input_shape) == (1, 8, 8) and names == list(CLASS_NAMES)
    return own and find_spec("torch") is not None  # which prepares drawings; exported models run without it


def read_drawing(grey: np.ndarray) -> Tensor:
    """Return a drawing, uint8 [H, W], as an input, float32 [1, 8, 8]."""
    import torch

    if (scale := WORKING_SIDE / max(grey.shape)) < 1:
        height, width = (max(1, round(side * scale)) for side in grey.shape)
        grey = np.asarray(Image.fromarray(grey).resize((width, height), Image.Resampling.BOX))
    ink = without_specks(ink_mask(grey))
    if not ink.any():
        raise NoInkError("The drawing is empty: no ink stands out from the paper.")
    glyph = cut_out(thickened(cut_out(ink)))
    height, width = size_in_box(*glyph.shape)
    return block_counts(in_box(torch.from_numpy(glyph).float(), height, width, shift=0)[None])[0]


class InkForm(InputForm):
    """Takes every picture for a pen drawing, for models that read them."""

    @classmethod
    def of(cls, model: Any) -> InkForm:
        if not reads_drawings(model):
            actual = f"a model with inputs of shape {tuple(model.input_shape)}"
            raise InputError(explain("ink", actual, "one that reads the embedded digits: 1 x 8 x 8, classes 0 to 9"))
        return cls((1, 8, 8), model.input_dtype)

    def images(self, pictures: np.ndarray) -> Any:
        greys = [np.asarray(Image.fromarray(each.squeeze()).convert("L")) for each in pictures]
        return self.inputs(np.stack([read_drawing(grey).numpy() for grey in greys]).astype(self.number))


def ink_mask(grey: np.ndarray) -> np.ndarray:
    """Return True where there is ink; nowhere if all pixels are nearly alike."""
    if int(grey.max()) - int(grey.min()) < 32:
        return np.zeros(grey.shape, bool)
    bright = grey > otsu_threshold(grey)
    border = np.concatenate([bright[0], bright[-1], bright[:, 0], bright[:, -1]])
    return ~bright if border.mean() >= 0.5 else bright


def otsu_threshold(grey: np.ndarray) -> int:
    """Return the t that maximises w0 w1 (m0 - m1)^2 of the pixels <= t and > t (Otsu 1979); of equal ones the middle."""
    counts = np.bincount(grey.ravel(), minlength=256).astype(float)
    weight, mass = counts.cumsum()[:-1], (counts * np.arange(256)).cumsum()[:-1]
    other, other_mass = counts.sum() - weight, (counts * np.arange(256)).sum() - mass
    with np.errstate(divide="ignore", invalid="ignore"):
        between = np.nan_to_num(weight * other * (mass / weight - other_mass / other) ** 2)
    best = np.flatnonzero(between >= between.max() * (1 - 1e-12))
    return int(best[len(best) // 2])


def without_specks(ink: np.ndarray) -> np.ndarray:
    from scipy import ndimage

    parts, number = ndimage.label(ink, structure=np.ones((3, 3)))
    if number < 2:
        return ink
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return (sizes >= SPECK * sizes.max())[parts] & ink


def cut_out(ink: np.ndarray) -> np.ndarray:
    """Return the bounding box of the ink."""
    rows, columns = ink.any(1).nonzero()[0], ink.any(0).nonzero()[0]
    return ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def thickened(glyph: np.ndarray) -> np.ndarray:
    """Return ink with a border; strokes in which no circle of width ``THINNEST`` fits are grown evenly."""
    from scipy import ndimage

    width = THINNEST * max(glyph.shape)
    ink = np.pad(glyph, math.ceil(width))
    missing = width / 2 - ndimage.distance_transform_edt(ink).max()
    return ndimage.distance_transform_edt(~ink) <= missing if missing > 0 else ink


def size_in_box(height: int, width: int) -> tuple[int, int]:
    """Return how large the ink becomes: as tall as the box, a little narrowed, unless it is wider than tall."""
    if width * NARROWING <= height:
        return BOX, max(NARROWEST, round(BOX * width / height * NARROWING))
    return max(1, round(BOX * height / (width * NARROWING))), BOX


def in_box(glyph: Tensor, height: int, width: int, shift: int) -> Tensor:
    """Return the glyph as a bitmap of ``height x width`` in the middle of the box, moved by ``shift``."""
    import torch
    from torch.nn.functional import interpolate

    width = min(width, BOX - 2 * abs(shift))
    resized = interpolate(glyph[None, None], size=(height, width), mode="area")[0, 0]
    box = torch.zeros(BOX, BOX)
    top, left = (BOX - height) // 2, (BOX - width) // 2 + shift
    # Hairlines of some faces are thinner than a pixel: a quarter of one counts as ink, so that they do not break up.
    box[top : top + height, left : left + width] = (resized > 0.25).float()
    return box


def block_counts(bitmaps: Tensor) -> Tensor:
    """Return the share of set pixels in each 4x4 block: ``[N, 32, 32]`` to ``[N, 1, 8, 8]``."""
    from torch.nn.functional import avg_pool2d

    return avg_pool2d(bitmaps[:, None], BOX // 8)
