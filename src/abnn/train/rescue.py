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
        self.before, self.chance = self._over_devices(before), self._over_devices(chance)
        self.recent: deque[tuple[Tensor, int]] = deque(maxlen=WINDOW)  # shares of right predictions, and of how many

    def see(self, losses: dict[str, Tensor], inputs: int) -> None:
        share = losses["accuracy"].detach().clone()  # captured steps always return the same tensors
        self.recent.append((share, inputs))

    def lost(self) -> str | None:
        """At the end of an epoch: what its last steps say, if that is bad. The next epoch starts anew."""
        inputs = sum(count for _, count in self.recent)
        now = self._over_devices(sum(float(share) * count for share, count in self.recent) / inputs)
        self.recent.clear()
        if not forgotten(self.before, now, self.chance, inputs * self.fabric.world_size):
            return None
        return f"{now:.1%} of the training inputs are classified right, {self.before:.1%} were before"

    def _over_devices(self, share: float) -> float:
        if self.fabric.world_size == 1:
            return share
        return float(self.fabric.all_reduce(torch.tensor(share, device=self.fabric.device)))

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold."""
        recent = [[float(share), count] for share, count in self.recent]
        return {"before": self.before, "chance": self.chance, "recent": recent}

    def restore(self, state: dict[str, Any]) -> None:
        self.before, self.chance = state["before"], state["chance"]
        self.recent.extend((torch.tensor(share), int(count)) for share, count in state["recent"])
