"""Attachments that learn too fast can overwrite what a network knew, which the rest of a fit does not always repair.

The share of inputs that steps classify right tells it while it happens: when half of what the network knew beyond chance is
gone at the end of an epoch, the fit begins again at a third of the rate.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor

WINDOW = 10  # steps at the end of an epoch that are looked at
LEFT = 0.5  # of what was known, the least that is left
SLOWER, TIMES = 3.0, 3  # by so much, and so often at most
TELLING = 3.0  # standard errors by which a loss must be larger than chance


def forgotten(before: float, now: float, chance: float, inputs: int) -> bool:
    """Whether the shares of right predictions say that more than half of what was known is gone, of so many inputs now."""
    return now - chance < LEFT * (before - chance) and before - now > TELLING * math.sqrt(0.25 / max(inputs, 1))


class Rescue:
    """Looks at the steps of a run.

    before  the share of inputs that were classified right before it
    chance  what that would be by chance
    """

    def __init__(self, before: float, chance: float, fabric: Any) -> None:
        self.fabric = fabric
        self.before, self.chance = self._over_devices(torch.tensor([before, chance], dtype=torch.float64))
        self.recent: deque[Tensor] = deque(maxlen=WINDOW)
        self.inputs: deque[int] = deque(maxlen=WINDOW)

    def see(self, losses: dict[str, Tensor], inputs: int) -> None:
        self.recent.append(losses["accuracy"].detach().clone())  # captured steps return the same tensors every time
        self.inputs.append(inputs)

    def lost(self) -> str | None:
        """At the end of an epoch: what its last steps say, if that is bad. The next epoch starts anew."""
        shares = torch.stack([each.to(self.fabric.device) for each in self.recent]).double()
        sizes = torch.tensor(self.inputs, dtype=torch.float64, device=self.fabric.device)
        (now,), inputs = (
            self._over_devices((shares @ sizes / sizes.sum())[None]),
            sum(self.inputs) * self.fabric.world_size,
        )
        self.recent.clear()
        self.inputs.clear()
        if not forgotten(self.before, now, self.chance, inputs):
            return None
        return f"{now:.1%} of the training inputs are classified right, {self.before:.1%} were before"

    def _over_devices(self, means: Tensor) -> list[float]:
        alone = self.fabric.world_size == 1
        return (means if alone else self.fabric.all_reduce(means.to(self.fabric.device))).tolist()

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        return {"recent": [float(each) for each in self.recent], "inputs": [*self.inputs]}

    def restore(self, state: dict[str, Any]) -> None:
        self.recent.extend(torch.tensor(each) for each in state["recent"])
        self.inputs.extend(state["inputs"])
