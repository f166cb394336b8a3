"""The nine sets and their standard splits, from a folder with one file NAME.npz for each.

A file has ``features`` [N, F], ``target`` [N] and ``test_0``, ``test_1``, ...: the test rows of every split. A fifth of the other rows is held
out for validation: settings and noise are chosen on it, and widths calibrated. Everything is standardised by the rows that are left.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

SETS = {
    "bostonHousing": "boston", "concrete": "concrete", "energy": "energy", "kin8nm": "kin8nm",
    "naval-propulsion-plant": "naval", "power-plant": "power", "protein-tertiary-structure": "protein",
    "wine-quality-red": "wine", "yacht": "yacht",
}  # fmt: skip
"""Files and the names that the literature has for them."""
VALIDATION = 0.2
Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Split:
    """Inputs and targets, standardised; ``centre`` and ``unit`` bring targets back."""

    train: Pair
    validation: Pair
    test: Pair
    centre: float
    unit: float

    def moved(self, seed: int, by: float = 3.0) -> Tensor:
        """Test inputs of which every feature is moved by so many of its standard deviations, up or down at random."""
        x = self.test[0]
        signs = torch.randint(2, x.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
        return x + by * signs


def load(folder: Path, file: str) -> tuple[list[Split], str]:
    """Return all splits of a set, and the sha256 of its numbers."""
    with np.load(folder / f"{file}.npz") as stored:
        x, y = stored["features"].astype(np.float64), stored["target"].astype(np.float64)
        tests = [stored[f"test_{number}"] for number in range(sum(name.startswith("test_") for name in stored.files))]
    digest = hashlib.sha256(
        x.tobytes() + y.tobytes() + b"".join(np.ascontiguousarray(test).tobytes() for test in tests)
    )
    return [_split(x, y, test, number) for number, test in enumerate(tests)], digest.hexdigest()


def _split(x: np.ndarray, y: np.ndarray, test: np.ndarray, seed: int) -> Split:
    rest = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(y)), test))
    cut = int((1 - VALIDATION) * len(rest))
    train = rest[:cut]
    mean, spread = x[train].mean(0), x[train].std(0)
    spread = np.where(spread > 1e-12, spread, 1.0)
    centre, unit = float(y[train].mean()), float(y[train].std())

    def pair(rows: np.ndarray) -> Pair:
        inputs, targets = (x[rows] - mean) / spread, (y[rows] - centre) / unit
        return torch.tensor(inputs, dtype=torch.float32), torch.tensor(targets, dtype=torch.float32)

    return Split(pair(train), pair(rest[cut:]), pair(test), centre, unit)
