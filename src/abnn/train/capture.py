"""Whole training steps as one CUDA graph: the kernels of a step run without Python between them.

The first steps run one by one, which also warms up what CUDA needs before a capture. Then one step is captured with its own
copies of input and labels, and replayed for every further batch of that shape; a batch of another shape, such as the last
smaller one, runs one by one. Random numbers come from CUDA's global generator, whose seed a replay reads anew, so that a
captured step draws what the same step would draw otherwise. Learning rates are tensors on the device.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from abnn.errors import AbnnWarning
from abnn.model.blocks import summary
from abnn.train.trainable import Trainable

WARM_UP = 3


class CapturedStep:
    """Calls a trainable's step, by a graph where that is possible."""

    def __init__(self, trainable: Trainable) -> None:
        self.trainable = trainable
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.count, self.off = 0, False
        self.x = self.y = torch.empty(0)
        self.losses: dict[str, Tensor] = {}

    def __call__(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        if not isinstance(x, Tensor):  # several inputs, of which masks may decide what runs
            return self.trainable.step(x, y, None)
        if self.graph is None and not self.off:
            self.count += 1
            if self.count <= WARM_UP:
                return self._warm_up(x, y)
            self._capture(x, y)
        if self.graph is None or x.shape != self.x.shape or y.shape != self.y.shape:
            return self.trainable.step(x, y, None)
        self.x.copy_(x)
        self.y.copy_(y)
        self.graph.replay()
        return self.losses

    def _warm_up(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            losses = self.trainable.step(x, y, None)
        torch.cuda.current_stream().wait_stream(self.stream)
        return losses

    def _capture(self, x: Tensor, y: Tensor) -> None:
        state, graph = torch.cuda.get_rng_state(), torch.cuda.CUDAGraph()
        self.x, self.y = x.clone(), y.clone()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                self.losses = self.trainable.step(self.x, self.y, None)
            self.graph = graph
        except Exception as error:  # noqa: BLE001 - whatever a network does that cannot be captured
            torch.cuda.synchronize()
            self.off = True
            warnings.warn(
                f"The training step cannot be captured as one CUDA graph and runs kernel by kernel ({summary(error)}).",
                AbnnWarning,
                stacklevel=4,
            )
        torch.cuda.set_rng_state(state)
