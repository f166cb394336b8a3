"""Patches of the two photographs that come with scikit-learn, at several scales: pictures of nothing in particular."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.data.arrays import MemorySource

SIDES = (32, 64, 128, 256)


def sample_photographs() -> list[Tensor]:
    """The two photographs, float ``[3, 427, 640]`` from 0 to 255."""
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
    """Square patches ``[count, C, pixels, pixels]`` at random places, equally many of each photograph and side length.

    Each pixel is the mean over its area; brightness and contrast are those of the photograph. Much of both photographs is
    plain sky or blurred leaves, so of ``tries`` places for each patch those with a standard deviation of at least ``contrast``
    in some channel are taken; every fourth is taken as it comes. Photographs are ``[C, H, W]``.
    """
    rng = np.random.default_rng(seed)
    per_group = math.ceil(count / (len(photos) * len(sides)))
    groups = []
    for photo in photos:
        for side in sides:
            block = side // pixels
            means = F.avg_pool2d(photo[None], block, stride=1)[0]
            steps = torch.arange(pixels) * block
            top, left = (torch.from_numpy(rng.integers(0, n - side + 1, tries * per_group)) for n in photo.shape[1:])
            patches = means[:, top[:, None, None] + steps[:, None], left[:, None, None] + steps].movedim(0, 1)
            plain = per_group // 4
            structured = patches[plain:][patches[plain:].flatten(2).std(dim=2).amax(1) >= contrast]
            groups.append(torch.cat([patches[:plain], structured[: per_group - plain]]))
    return torch.cat(groups)[:count]


def photograph_crops(count: int, seed: int) -> np.ndarray:
    """Return patches of 32x32 in colour, from 32 to 256 pixels of the photograph wide, as uint8 ``[count, 32, 32, 3]``."""
    # Sums over whole numbers of 8 bits are exact in float32, so every machine gives the same bytes.
    patches = random_patches(sample_photographs(), 32, SIDES, count, seed, contrast=0.05 * 255, tries=4)
    return patches.round().byte().movedim(1, -1).contiguous().numpy()


def open_photographs(name: str) -> MemorySource:
    """Return 4,000 crops without labels."""
    pictures = photograph_crops(4000, seed=5)
    return MemorySource(pictures, np.full(len(pictures), -1, np.int64), name)
