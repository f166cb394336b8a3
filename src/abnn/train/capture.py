"""Whole training steps as one CUDA graph: the kernels of a step run without Python between them.

The first steps run kernel by kernel, which also warms up what CUDA needs before a capture. Then one step is captured
with copies of input and labels of its own. It is replayed for every further batch of that shape; a batch of another
shape, such as a last smaller one, runs kernel by kernel.

Random numbers come from CUDA's global generator. A replay reads its seed anew, so a captured step draws what the same
step would draw otherwise. Learning rates are tensors on the device.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from abnn.errors import AbnnWarning
from abnn.model.calls import summary
from abnn.predict.capturing import capture
from abnn.train.trainable import Trainable

WARM_UP = 3  # steps before the capture


class CapturedStep:
    """Runs a trainable's step as a graph where that is possible; what its ``prepare_step`` makes stays outside."""

    def __init__(self, trainable: Trainable) -> None:
        self.trainable = trainable
        self.stream = torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.count, self.off = 0, False
        self.inputs: list[Tensor] = []  # the graph's own
        self.losses: dict[str, Tensor] = {}

    def __call__(self, x: Any, y: Tensor) -> dict[str, Tensor]:
        if not isinstance(x, Tensor):  # several inputs, of which masks may decide what runs
            return self.trainable.step(x, y, None)
        inputs = [x, y, *self.trainable.prepare_step(x, y)]
        if self.graph is None and not self.off:
            self.count += 1
            if self.count <= WARM_UP:
                return self._warm_up(inputs)
            self._capture(inputs)
        if self.graph is None or [each.shape for each in inputs] != [each.shape for each in self.inputs]:
            return self._step(inputs)
        for copy, value in zip(self.inputs, inputs):
            copy.copy_(value)
        self.graph.replay()
        return self.losses

    def _step(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        return self.trainable.step_with(*inputs)

    def _warm_up(self, inputs: list[Tensor]) -> dict[str, Tensor]:
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            losses = self._step(inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return losses

    def _capture(self, inputs: list[Tensor]) -> None:
        state, graph = torch.cuda.get_rng_state(), torch.cuda.CUDAGraph()
        self.inputs = [each.clone() for each in inputs]
        try:
            with capture(graph, self.stream, torch.cuda.graph_pool_handle()):
                self.losses = self._step(self.inputs)
            self.graph = graph
        except Exception as error:  # noqa: BLE001 - whatever a network does that cannot be captured
            self.off = True
            warnings.warn(
                f"The training step cannot be captured as one CUDA graph and runs kernel by kernel ({summary(error)}).",
                AbnnWarning,
                stacklevel=4,
            )
        torch.cuda.set_rng_state(state)
