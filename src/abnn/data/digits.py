"""Three tiers of 8x8 images: handwritten digits, printed digits, photographs. Nothing is downloaded.

All have the form of scikit-learn's handwritten digits (UCI "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak,
CC BY 4.0): a bitmap of 32x32 reduced to 8x8 by counting the set pixels of each 4x4 block, so 17 grey levels, bright on dark. The
other tiers are in ``digits.npz``, made by ``python -m research.data``: digits in fonts that ship with matplotlib, and patches
of the two photographs that ship with scikit-learn (by danielbuechele and vultilion, CC BY 2.0).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from abnn.data.arrays import MemorySource
from abnn.data.drawing import CLASS_NAMES
from abnn.errors import InputError, explain, unknown

LEVELS = 16  # steps between black and white
STORED = Path(__file__).with_name("digits.npz")


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
    semi: Labelled  # printed digits in the DejaVu and Computer Modern faces
    full: Labelled  # patches of the photographs at five scales, grey
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


def load_digits(seed: int = 0) -> DigitsData:
    """Return all tiers; ``seed`` decides the split of the handwritten digits, the rest is always the same."""
    return DigitsData(**handwritten_digits(seed), **stored_tiers())


def handwritten_digits(seed: int) -> dict[str, Labelled]:
    """Return the handwritten digits, split 60/15/25 into train, val and test with equal shares of each class."""
    from sklearn.datasets import load_digits as load_handwritten
    from sklearn.model_selection import train_test_split

    images, target = load_handwritten(return_X_y=True)
    rest, test = train_test_split(np.arange(len(target)), test_size=0.25, stratify=target, random_state=seed)
    train, val = train_test_split(rest, test_size=0.2, stratify=target[rest], random_state=seed)
    parts = {"train": train, "val": val, "test": test}
    return {name: _labelled(images[rows], target[rows]) for name, rows in parts.items()}


def stored_tiers() -> dict[str, Labelled]:
    """Return the tiers that are the same for every seed: semi, full, val_semi and val_full."""
    with np.load(STORED) as arrays:
        names = [name for name in arrays if not name.endswith("_labels")]
        return {name: _labelled(arrays[name], arrays[f"{name}_labels"]) for name in names}


def _labelled(levels: np.ndarray, labels: np.ndarray) -> Labelled:
    x = torch.from_numpy(levels).float().view(-1, 1, 8, 8) / LEVELS
    return Labelled(x, torch.from_numpy(labels).long())


def open_digits(text: str, name: str) -> MemorySource:
    """Return the tier that "digits/SPLIT" or "digits/SPLIT/SEED" names."""
    split, _, seed = text.removeprefix("digits").removeprefix("/").partition("/")
    splits = [field.name for field in fields(DigitsData)]
    if split not in splits:
        raise unknown("source", text, [f"digits/{each}" for each in splits])
    if seed and not (seed.isascii() and seed.isdigit()):
        raise InputError(explain("source", repr(text), "digits/SPLIT/SEED with a whole number as seed"))
    part: Labelled = getattr(load_digits(int(seed or 0)), split)
    return MemorySource(part.x.movedim(1, -1).numpy(), part.y.numpy(), name, CLASS_NAMES)
