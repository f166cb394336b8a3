"""Three tiers of 8x8 images that come with the dependencies: handwritten digits, printed digits, photographs.

Nothing is downloaded. Everything has the form of scikit-learn's handwritten digits (UCI "Optical Recognition of
Handwritten Digits", E. Alpaydin and C. Kaynak, CC BY 4.0): a bitmap of 32x32 reduced to 8x8 by counting the set pixels
of each 4x4 block, so 17 grey levels, bright on dark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.data.arrays import MemorySource
from abnn.data.photographs import random_patches, sample_photographs
from abnn.errors import InputError, explain, unknown

BOX = 32
CLASS_NAMES = tuple("0123456789")
TEST_FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
"""Faces with ordinary digits; left out are symbol fonts (cmex10, cmsy10, STIXSiz*) and old-style figures (cmmi10). cmti10 comes
with matplotlib 3.11 and later, which need Python 3.11: with an older one there are 40 printed digits less, and another hash."""
VALIDATION_FACES = ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta")
PATCH_SIDES = (8, 16, 32, 64, 128)


class Labelled(NamedTuple):
    """Images float32 ``[N, C, H, W]`` in [0, 1] and labels int64 ``[N]``, -1 where an image belongs to no class."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class DigitsData:
    """All tiers; ``val_semi`` and ``val_full`` are there to choose settings without looking at a test tier."""

    train: Labelled  # handwritten digits
    val: Labelled  # handwritten digits, for thresholds and choices
    test: Labelled  # handwritten digits
    semi: Labelled  # printed digits in the DejaVu and Computer Modern faces that ship with matplotlib
    full: Labelled  # patches of scikit-learn's two photographs at five scales, grey
    val_semi: Labelled  # printed digits in the STIX faces, which are in no test
    val_full: Labelled  # stripes, checkers, gradients and boxes made by formulas, which are in no test

    def hash(self) -> str:
        """Return the SHA-256 over names, shapes and values of all arrays, for run records."""
        digest = hashlib.sha256()
        for field in fields(self):
            for array in getattr(self, field.name):
                digest.update(f"{field.name} {array.dtype} {tuple(array.shape)}".encode())
                digest.update(array.contiguous().numpy().tobytes())
        return digest.hexdigest()


MADE: dict[str, Callable[[], Labelled]] = {
    "semi": lambda: printed_digits(TEST_FACES, copies=4, seed=1),
    "full": lambda: unlabelled(photo_patches(1000, seed=2)),
    "val_semi": lambda: printed_digits(VALIDATION_FACES, copies=8, seed=3),
    "val_full": lambda: unlabelled(formula_textures(400, seed=4)),
}
"""The tiers that are the same for every seed."""


def load_digits(seed: int = 0) -> DigitsData:
    """Return all tiers; ``seed`` decides the split of the handwritten digits, the rest is always the same."""
    return DigitsData(**handwritten_digits(seed), **{name: make() for name, make in MADE.items()})


def open_digits(text: str, name: str) -> MemorySource:
    """Return the tier that "digits/SPLIT" or "digits/SPLIT/SEED" names."""
    split, _, seed = text.removeprefix("digits").removeprefix("/").partition("/")
    splits = [field.name for field in fields(DigitsData)]
    if split not in splits:
        raise unknown("source", text, [f"digits/{each}" for each in splits])
    if seed and not (seed.isascii() and seed.isdigit()):
        raise InputError(explain("source", repr(text), "digits/SPLIT/SEED with a whole number as seed"))
    part = MADE[split]() if split in MADE else handwritten_digits(int(seed or 0))[split]
    return MemorySource(part.x.movedim(1, -1).numpy(), part.y.numpy(), name, CLASS_NAMES)


def open_printed_digits(name: str) -> MemorySource:
    """Return 2,060 printed digits, 32x32, bright on dark."""
    bitmaps, labels = printed_bitmaps((*TEST_FACES, *VALIDATION_FACES), copies=10, seed=6)
    return MemorySource((bitmaps * 255).byte().numpy(), labels.numpy(), name, CLASS_NAMES)


def handwritten_digits(seed: int) -> dict[str, Labelled]:
    """Return the handwritten digits, split 60/15/25 into train, val and test with equal shares of each class."""
    from sklearn.datasets import load_digits as load_handwritten
    from sklearn.model_selection import train_test_split

    images, target = load_handwritten(return_X_y=True)
    rest, test = train_test_split(np.arange(len(target)), test_size=0.25, stratify=target, random_state=seed)
    train, val = train_test_split(rest, test_size=0.2, stratify=target[rest], random_state=seed)
    x, y = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16, torch.from_numpy(target).long()
    return {name: Labelled(x[rows], y[rows]) for name, rows in (("train", train), ("val", val), ("test", test))}


def unlabelled(x: Tensor) -> Labelled:
    return Labelled(x, torch.full((len(x),), -1))


def printed_digits(faces: tuple[str, ...], copies: int, seed: int) -> Labelled:
    """Printed digits in the form of the handwritten set."""
    bitmaps, labels = printed_bitmaps(faces, copies, seed)
    return Labelled(block_counts(bitmaps), labels)


def printed_bitmaps(faces: tuple[str, ...], copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """Bitmaps ``[N, 32, 32]`` of 0 and 1, and labels: each digit of each face, ``copies`` times with slightly different width, height and horizontal place.

    As in the handwritten set, a digit fills the height of the box. Its width follows from the face, times 0.85 on
    average and at least 12 pixels: then ink spreads over the columns as far as it does in handwriting, and its centre
    varies as much. The monospaced DejaVu faces have a dotted zero, which is not an ordinary one, and go without it.
    """
    rng = np.random.default_rng(seed)
    images, labels = [], []
    for face in present(faces):
        for digit in range(10):
            if digit == 0 and face.startswith("DejaVuSansMono"):
                continue
            glyph = glyph_bitmap(face, str(digit))
            for _ in range(copies):
                height = int(rng.integers(BOX - 2, BOX + 1))
                width = round(BOX * glyph.shape[1] / glyph.shape[0] * rng.uniform(0.77, 0.93))
                images.append(in_box(glyph, height, max(12, width), shift=int(rng.integers(-1, 2))))
                labels.append(digit)
    return torch.stack(images), torch.tensor(labels)


def present(faces: tuple[str, ...]) -> tuple[str, ...]:
    """Those that this version of matplotlib has."""
    return tuple(face for face in faces if _font_file(face).exists())


def glyph_bitmap(face: str, character: str) -> Tensor:
    """The ink of one character, rendered large and cut to its bounding box, as float ``[h, w]`` in [0, 1]."""
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(_font_file(face)))
    font.set_size(6 * BOX, 72)
    font.set_text(character)
    font.draw_glyphs_to_bitmap(antialiased=True)
    ink = torch.from_numpy(np.array(font.get_image())).float() / 255
    rows, columns = ((ink > 0.5).any(dim=axis).nonzero().flatten() for axis in (1, 0))
    return ink[int(rows[0]) : int(rows[-1]) + 1, int(columns[0]) : int(columns[-1]) + 1]


def _font_file(face: str) -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"


def in_box(glyph: Tensor, height: int, width: int, shift: int) -> Tensor:
    """The glyph stretched to ``height x width``, as a bitmap of 0 and 1 in the middle of the box, moved by ``shift``."""
    width = min(width, BOX - 2 * abs(shift))
    resized = F.interpolate(glyph[None, None], size=(height, width), mode="area")[0, 0]
    box = torch.zeros(BOX, BOX)
    top, left = (BOX - height) // 2, (BOX - width) // 2 + shift
    # Hairlines of some faces are thinner than a pixel: a quarter of one counts as ink, so that they do not break up.
    box[top : top + height, left : left + width] = (resized > 0.25).float()
    return box


def block_counts(bitmaps: Tensor) -> Tensor:
    """``[N, 32, 32]`` to ``[N, 1, 8, 8]``: the share of set pixels in each 4x4 block."""
    return F.avg_pool2d(bitmaps[:, None], BOX // 8)


def photo_patches(count: int, seed: int) -> Tensor:
    """Square patches of the two photographs, grey by the luma weights of ITU-R BT.601, rounded to 17 levels."""
    weights = torch.tensor([0.299, 0.587, 0.114])
    photos = [(photo.movedim(0, -1) @ weights)[None] / 255 for photo in sample_photographs()]
    return to_levels(random_patches(photos, 8, PATCH_SIDES, count, seed))


def to_levels(images: Tensor) -> Tensor:
    """The 17 grey levels of the handwritten set."""
    return (images * 16).round() / 16


def formula_textures(count: int, seed: int) -> Tensor:
    """Stripes, checkers, linear gradients and boxes in equal shares, at random angles, sizes, levels and contrasts."""
    rng = np.random.default_rng(seed)
    axis = (np.arange(BOX) + 0.5) / BOX - 0.5
    images = []
    for number in range(count):
        angle, phase = rng.uniform(0, 2 * np.pi), rng.uniform(0, 1, size=2)
        cycles = rng.uniform(1, 4)
        along = np.cos(angle) * axis[:, None] + np.sin(angle) * axis
        across = -np.sin(angle) * axis[:, None] + np.cos(angle) * axis
        waves = np.sin(2 * np.pi * (cycles * along + phase[0])), np.sin(2 * np.pi * (cycles * across + phase[1]))
        pattern = (
            waves[0] > 0,
            waves[0] * waves[1] > 0,
            np.clip(along + 0.5, 0, 1),
            np.maximum(abs(along - phase[0] + 0.5), abs(across - phase[1] + 0.5)) < rng.uniform(0.1, 0.4),
        )[number % 4].astype(np.float64)
        contrast = rng.uniform(0.2, 1)
        shade = 1 - pattern if rng.random() < 0.5 else pattern
        images.append(rng.uniform(0, 1 - contrast) + contrast * shade)
    return to_levels(block_counts(torch.from_numpy(np.stack(images)).float()))
