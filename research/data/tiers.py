"""Pictures made from what comes with the dependencies: the stored tiers of the embedded digits, and sets for choosing settings.

    python -m research.data    writes src/abnn/data/digits.npz, which abnn.data.digits reads

Printed digits and patches of photographs, in the form of scikit-learn's handwritten digits (8x8, 17 grey levels) and at full size.
"""

from __future__ import annotations

import io
import math
from itertools import product
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.data.arrays import MemorySource
from abnn.data.digits import CLASS_NAMES, LEVELS, STORED, Labelled
from abnn.data.drawing import BOX, block_counts, in_box
from abnn.files import write_bytes

TEST_FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("cmr10", "cmb10", "cmss10", "cmti10", "cmtt10"),
)
"""Faces with ordinary digits; left out are symbol fonts (cmex10, cmsy10, STIXSiz*) and old-style figures (cmmi10). cmti10 comes
with matplotlib 3.11 and later, which need Python 3.11: an older one cannot make all of the stored tiers."""
VALIDATION_FACES = ("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta")
PATCH_SIDES, CROP_SIDES = (8, 16, 32, 64, 128), (32, 64, 128, 256)


def make_tiers() -> dict[str, Labelled]:
    """Return the tiers of the embedded digits that are the same for every seed."""
    return {
        "semi": printed_digits(TEST_FACES, copies=4, seed=1),
        "full": unlabelled(photo_patches(1000, seed=2)),
        "val_semi": printed_digits(VALIDATION_FACES, copies=8, seed=3),
        "val_full": unlabelled(formula_textures(400, seed=4)),
    }


def write_tiers(file: Path = STORED) -> None:
    """Write all tiers into one file: grey levels as uint8 ``[N, 8, 8]``, and labels."""
    arrays = {}
    for name, (x, y) in make_tiers().items():
        arrays[name], arrays[f"{name}_labels"] = (x[:, 0] * LEVELS).byte().numpy(), y.to(torch.int8).numpy()
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    write_bytes(file, content.getvalue())


def unlabelled(x: Tensor) -> Labelled:
    return Labelled(x, torch.full((len(x),), -1))


def printed_digits(faces: tuple[str, ...], copies: int, seed: int) -> Labelled:
    """Printed digits in the form of the handwritten set."""
    bitmaps, labels = printed_bitmaps(faces, copies, seed)
    return Labelled(block_counts(bitmaps), labels)


def printed_bitmaps(faces: tuple[str, ...], copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return bitmaps ``[N, 32, 32]`` of 0 and 1, and labels: each digit of each face, ``copies`` times.

    The copies differ slightly in width, height and horizontal place.

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


def photo_patches(count: int, seed: int) -> Tensor:
    """Square patches of the two photographs, grey by the luma weights of ITU-R BT.601, rounded to 17 levels."""
    weights = torch.tensor([0.299, 0.587, 0.114])
    photos = [(photo.movedim(0, -1) @ weights)[None] / 255 for photo in sample_photographs()]
    return to_levels(random_patches(photos, 8, PATCH_SIDES, count, seed))


def sample_photographs() -> list[Tensor]:
    """Return scikit-learn's two photographs, float ``[3, 427, 640]`` from 0 to 255."""
    from sklearn.datasets import load_sample_images

    return [torch.tensor(photo).float().movedim(-1, 0) for photo in load_sample_images().images]


def random_patches(
    photos: list[Tensor],
    pixels: int,
    sides: tuple[int, ...],
    count: int,
    seed: int,
    contrast: float = 0.05,
    tries: int = 20,
) -> Tensor:
    """Return square patches ``[count, C, pixels, pixels]``, equally many of each photograph ``[C, H, W]`` and side length.

    Each pixel is the mean over its area; brightness and contrast are those of the photograph. Much of both photographs is
    plain sky or blurred leaves, so of ``tries`` places for each patch those with a standard deviation of at least ``contrast``
    in some channel are taken; every fourth is taken as it comes.
    """
    rng = np.random.default_rng(seed)
    per_group = math.ceil(count / (len(photos) * len(sides)))
    plain = per_group // 4
    groups = []
    for photo, side in product(photos, sides):
        means = F.avg_pool2d(photo[None], side // pixels, stride=1)[0]
        steps = torch.arange(pixels) * (side // pixels)
        top, left = (torch.from_numpy(rng.integers(0, n - side + 1, tries * per_group)) for n in photo.shape[1:])
        patches = means[:, top[:, None, None] + steps[:, None], left[:, None, None] + steps].movedim(0, 1)
        structured = patches[plain:][patches[plain:].flatten(2).std(dim=2).amax(1) >= contrast]
        groups.append(torch.cat([patches[:plain], structured[: per_group - plain]]))
    return torch.cat(groups)[:count]


def to_levels(images: Tensor) -> Tensor:
    """The 17 grey levels of the handwritten set."""
    return (images * LEVELS).round() / LEVELS


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


def photograph_crops(count: int, seed: int) -> np.ndarray:
    """Return patches of 32x32 in colour, from 32 to 256 pixels of the photograph wide, as uint8 ``[count, 32, 32, 3]``."""
    # Sums over whole numbers of 8 bits are exact in float32, so every machine gives the same bytes.
    patches = random_patches(sample_photographs(), 32, CROP_SIDES, count, seed, contrast=0.05 * 255, tries=4)
    return patches.round().byte().movedim(1, -1).contiguous().numpy()


def open_photographs(text: str, name: str, root: Path) -> MemorySource:
    """Return 4,000 crops without labels."""
    pictures = photograph_crops(4000, seed=5)
    return MemorySource(pictures, np.full(len(pictures), -1, np.int64), name)


def open_printed_digits(text: str, name: str, root: Path) -> MemorySource:
    """Return 2,060 printed digits, 32x32, bright on dark."""
    bitmaps, labels = printed_bitmaps((*TEST_FACES, *VALIDATION_FACES), copies=10, seed=6)
    return MemorySource((bitmaps * 255).byte().numpy(), labels.numpy(), name, CLASS_NAMES)
