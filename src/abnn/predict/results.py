"""What the passes of one prediction return, put together for all draws and inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from abnn.model.network import AttachedNetwork
from abnn.predict.chunks import Chunks
from abnn.predict.passes import Outputs, judge


class Results:
    """Collects the predictive distributions of all draws, and what the learnt score and its parts need.

    If all draws come in one pass, the pass computes score and parts. Else every pass returns the network's outputs, the
    first pass of each input also the statistics of its features, and :meth:`judgement` computes score and parts.

    chunks  the passes
    judges  whether the learnt score is computed
    """

    def __init__(self, network: AttachedNetwork, chunks: Chunks, judges: bool) -> None:
        self.network, self.chunks, self.judges = network, chunks, judges
        self.first = int(network.comes_along)  # the place of the first draw
        self.at_once = len(chunks.draws) == 1
        self._by_name: dict[str, Tensor] = {}

    def wanted(self, draws: range) -> str:
        """Return what a pass of these draws must return, a key of :data:`abnn.predict.passes.WANTED`."""
        if not self.judges:
            return "samples"
        if self.at_once:
            return "score"
        return "evidence" if draws.start == 0 else "outputs"

    def add(self, draws: range, rows: slice, outputs: Outputs) -> None:
        """Add what a pass of these draws and inputs returned."""
        samples, *rest = outputs
        self._put_draws("samples", draws, rows, samples)
        if self.judges and self.at_once:
            self._put("judgement", rows, rest[0])
        elif self.judges:
            self._put_draws("outputs", draws, rows, rest[0])
            for name, part in zip(("statistics", "last"), rest[1:]):  # of the first pass alone
                self._put(name, rows, part)

    @property
    def samples(self) -> Tensor:
        """The predictive distributions, [S, B, ...], the plain network's first where that comes along."""
        return self._by_name["samples"]

    def judgement(self) -> Tensor | None:
        """Return the result of :func:`abnn.predict.passes.judge` for all inputs; None: it was not asked for."""
        if self.judges and not self.at_once:
            outputs, statistics, last = (self._by_name.get(name) for name in ("outputs", "statistics", "last"))
            assert outputs is not None and statistics is not None
            for rows in self.chunks.inputs:  # a few at a time: intermediate results are as large as all outputs
                own = None if last is None else last[rows]
                evidence = self.network.evidence(outputs[:, rows], own, statistics[rows])
                self._put("judgement", rows, judge(self.network, evidence))
        return self._by_name.get("judgement")

    def _put(self, name: str, rows: slice, part: Tensor | None) -> None:
        """Add the rows of ``part``, [B, ...], to what has this name."""
        if part is not None:
            self._whole(name, part, 0)[rows] = part

    def _put_draws(self, name: str, draws: range, rows: slice, part: Tensor | None) -> None:
        """Add the draws and rows of ``part``, [S, B, ...], the plain network's first, to what has this name."""
        assert part is not None
        whole = self._whole(name, part, 1)
        if len(part) == len(whole):
            whole[:, rows] = part
        else:
            whole[: self.first, rows] = part[: self.first]
            whole[self.first + draws.start : self.first + draws.stop, rows] = part[self.first :]

    def _whole(self, name: str, part: Tensor, axis: int) -> Tensor:
        """Return the tensor of this name for all draws and inputs; ``axis``: that of the inputs."""
        if name not in self._by_name:
            sizes = (self.first + self.chunks.draws[-1].stop, self.chunks.inputs[-1].stop)[1 - axis :]
            with torch.inference_mode(False):  # so that autograd can use it
                self._by_name[name] = torch.empty(*sizes, *part.shape[axis + 1 :], dtype=part.dtype, device=part.device)
        return self._by_name[name]
