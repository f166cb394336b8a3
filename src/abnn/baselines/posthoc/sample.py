"""A random choice of rows from a stream of unknown length, in bounded memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain


class Sample:
    """At most so many rows of all that were added: those with the smallest random keys, in the order they came."""

    def __init__(self, most: int, seed: int) -> None:
        self.most = most
        self.random = np.random.default_rng(seed)
        self.keys: list[Tensor] = []
        self.parts: list[dict[str, Tensor]] = []

    def add(self, rows: dict[str, Tensor]) -> None:
        self.keys.append(torch.from_numpy(self.random.random(len(rows["logits"]))))
        self.parts.append(rows)
        if sum(map(len, self.keys)) > 2 * self.most:
            self._cut()

    def finish(self) -> dict[str, Tensor]:
        if not self.parts:
            raise InputError(
                explain("batches", "no batch", "at least one (x, y) batch", "Check data set and drop_last.")
            )
        self._cut()
        return self.parts[0]

    def _cut(self) -> None:
        keys = torch.cat(self.keys)
        chosen = keys.argsort()[: self.most].sort().values
        whole = {name: torch.cat([rows[name] for rows in self.parts]) for name in self.parts[0]}
        self.keys, self.parts = [keys[chosen]], [{name: value[chosen] for name, value in whole.items()}]
