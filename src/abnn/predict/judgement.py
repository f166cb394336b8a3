"""The learnt score of a prediction over all of its draws, which may come in several passes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from abnn.model.network import AttachedNetwork
from abnn.predict.chunks import Chunks
from abnn.predict.passes import judge


class Judgement:
    """Collects from the passes of one prediction what the learnt score and its parts need.

    If all draws come in one pass, the pass computes score and parts. Else every pass returns the network's outputs, the
    first pass of each input also the statistics of its features, and :meth:`finish` computes score and parts.

    chunks  the passes
    first   the place of the first draw: 1 behind the plain network, else 0
    """

    def __init__(self, network: AttachedNetwork, chunks: Chunks, first: int) -> None:
        self.network, self.chunks, self.first = network, chunks, first
        self.at_once = len(chunks.draws) == 1
        self.batch = chunks.inputs[-1].stop
        self.result: Tensor | None = None
        self.outputs: Tensor | None = None
        self.statistics: Tensor | None = None
        self.last: Tensor | None = None

    def wanted(self, draws: range) -> str:
        """Return what a pass of these draws must return, a key of :data:`abnn.predict.passes.WANTED`."""
        if self.at_once:
            return "score"
        return "evidence" if draws.start == 0 else "outputs"

    def add(self, draws: range, rows: slice, results: Sequence[Tensor | None]) -> None:
        """Add the results of a pass of these draws and inputs, without the predictive distributions."""
        if self.at_once:
            self.result = self._put(self.result, rows, results[0])
            return
        outputs = results[0]
        assert outputs is not None
        if self.outputs is None:
            count = self.first + self.chunks.draws[-1].stop
            self.outputs = outputs.new_empty(count, self.batch, *outputs.shape[2:])
        self.outputs[: self.first, rows] = outputs[: self.first]
        self.outputs[self.first + draws.start : self.first + draws.stop, rows] = outputs[self.first :]
        if draws.start == 0:
            self.statistics = self._put(self.statistics, rows, results[1])
            self.last = self._put(self.last, rows, results[2])

    def finish(self) -> Tensor:
        """Return the result of :func:`abnn.predict.passes.judge` for all inputs."""
        if not self.at_once:
            assert self.outputs is not None and self.statistics is not None
            for rows in self.chunks.inputs:  # a few at a time: intermediate results are as large as all outputs
                last = None if self.last is None else self.last[rows]
                evidence = self.network.evidence(self.outputs[:, rows], last, self.statistics[rows])
                self.result = self._put(self.result, rows, judge(self.network, evidence))
        assert self.result is not None
        return self.result

    def _put(self, whole: Tensor | None, rows: slice, part: Tensor | None) -> Tensor | None:
        """Write the rows of ``part`` into ``whole``, which is created if it is None, and return it."""
        if part is None:
            return None
        if whole is None:
            with torch.inference_mode(False):  # so that autograd can use it
                whole = torch.empty(self.batch, *part.shape[1:], dtype=part.dtype, device=part.device)
        whole[rows] = part
        return whole
