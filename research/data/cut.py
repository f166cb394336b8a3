"""The fixed cut of training data: input i is in "val" if  floor(i / 100) mod 10 = 9,  else in "fit".

Whole blocks of 100 are held out, for neighbours may belong together: in SVHN the digits of one house number follow each other.
Nothing is drawn at random, so the cut is the same with every version of every library.
"""

from __future__ import annotations

import numpy as np

from abnn.data import Source
from abnn.data.classes import Subset
from abnn.errors import InputError, explain

BLOCK, EVERY = 100, 10
PARTS = ("fit", "val")


def is_held_out(count: int) -> np.ndarray:
    """Return for each of ``count`` inputs in their order whether it belongs to "val"."""
    return np.arange(count) // BLOCK % EVERY == EVERY - 1


def cut(source: Source, part: str, name: str) -> Subset:
    """Return "fit" or "val" of training data."""
    held_out = is_held_out(len(source))
    if not held_out.any():
        accepted = f"more than {BLOCK * (EVERY - 1)}, of which every {EVERY}th block of {BLOCK} is held out"
        raise InputError(explain(f"source {source.name!r}", f"{len(source)} inputs", accepted))
    rows = np.flatnonzero(held_out if part == "val" else ~held_out)
    return Subset(source, rows, source.labels[rows], source.class_names, name)
