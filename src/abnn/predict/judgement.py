"""The learnt score of a prediction whose draws may come in several passes: it is that of all draws, whatever the passes are."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from abnn.model.network import AttachedNetwork
from abnn.predict.chunks import Chunks
from abnn.predict.passes import judge


class Judgement:
    """The learnt score and its parts of one prediction, put together from its passes.

    Where all draws come in one pass, the pass computes both. Else the first pass of each input says what it read on the way,
    all of them what the network's outputs are, and :meth:`finish` computes score and parts.

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
        """Return what a pass of these draws has to say, see :data:`abnn.predict.passes.WANTED`."""
        if self.at_once:
            return "score"
        return "evidence" if draws.start == 0 else "outputs"

    def add(self, draws: range, rows: slice, said: Sequence[Tensor | None]) -> None:
        """Take what a pass said about some of the inputs."""
        if self.at_once:
            self.result = self._put(self.result, rows, said[0])
            return
        outputs = said[0]
        assert outputs is not None
        if self.outputs is None:
            count = self.first + self.chunks.draws[-1].stop
            self.outputs = outputs.new_empty(count, self.batch, *outputs.shape[2:])
        self.outputs[: self.first, rows] = outputs[: self.first]
        self.outputs[self.first + draws.start : self.first + draws.stop, rows] = outputs[self.first :]
        if draws.start == 0:
            self.statistics = self._put(self.statistics, rows, said[1])
            self.last = self._put(self.last, rows, said[2])

    def finish(self) -> Tensor:
        """Return what :func:`abnn.predict.passes.judge` does, for all inputs."""
        if not self.at_once:
            assert self.outputs is not None and self.statistics is not None
            for rows in self.chunks.inputs:  # a few at a time: intermediate results are as large as all outputs
                last = None if self.last is None else self.last[rows]
                evidence = self.network.evidence(self.outputs[:, rows], last, self.statistics[rows])
                self.result = self._put(self.result, rows, judge(self.network, evidence))
        assert self.result is not None
        return self.result

    def _put(self, whole: Tensor | None, rows: slice, part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        if whole is None:
            with torch.inference_mode(False):  # so that autograd can use it
                whole = torch.empty(self.batch, *part.shape[1:], dtype=part.dtype, device=part.device)
        whole[rows] = part
        return whole
