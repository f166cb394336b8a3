"""A pass that reads features. On the CPU it takes a few inputs at a time.

The system gives every tensor of more than 32 MiB new pages of memory, see :mod:`abnn.predict.heap`. With 64 images of
224 pixels that took two thirds of the time of an EfficientNet's pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from abnn.model.inputs import Batch
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.predict.chunks import plan
from abnn.predict.heap import keep_heap


class ReadingPass(Pass):
    """A pass with mean weights that notes features; the plain network is the first of its draws."""

    def __init__(self, network: AttachedNetwork) -> None:
        super().__init__(network, noting=True, plain=True)
        self.network = network
        self._noted: tuple[list[Tensor], Tensor | None] | None = None
        keep_heap()

    def __call__(self, x: Batch) -> Tensor:
        parts = plan(self.network, x, 1, plain=True).inputs if self.network.device.type == "cpu" else []
        if len(parts) < 2:
            return super().__call__(x)
        outputs, features, lasts, end = [], [], [], 0
        for rows in parts:
            outputs.append(super().__call__(x[max(end, rows.start) : rows.stop]))
            place_features, last = super().take_features()
            features.append(place_features)
            if last is not None:
                lasts.append(last)
            end = rows.stop
        self._noted = [torch.cat(each) for each in zip(*features)], torch.cat(lasts) if lasts else None
        return torch.cat(outputs, dim=1)

    def take_features(self, wait: bool = True) -> tuple[list[Tensor], Tensor | None]:
        noted, self._noted = self._noted, None
        return super().take_features(wait) if noted is None else noted
