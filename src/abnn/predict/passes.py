"""One pass of a prediction: the predictive distribution of every draw, the learnt score and its parts.

The learnt score depends on the mean over all draws. Where draws come in several passes, each returns what the score is
computed from, and :class:`abnn.predict.results.Results` computes it after the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.noise import Noise
from abnn.errors import InputError, explain
from abnn.model.calls import summary
from abnn.model.evidence import Evidence
from abnn.model.inputs import Batch, rows_of
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.model.views import side_by_side
from abnn.predict.inputs import without_embedding

Outputs = tuple[Tensor | None, ...]
"""Predictive distributions, [S, B, K], then the results that ``WANTED`` lists."""
WANTED = {
    "samples": "nothing more",
    "score": "the learnt score, its parts, and widths or the share of attachments, [B, 1 + parts + ...]",
    "outputs": "the network's outputs, [S, B, K]",
    "evidence": "the network's outputs, [S, B, K]; statistics of all places, [B, P + 2], and [B, P] more with means of "
    "classes; the input of its last layer, [B, F], or None",
}
"""What a pass returns after the predictive distributions."""


class PredictionPass:
    """A function from inputs to the outputs of a pass with fixed draws and views.

    noise   of the draws; the plain network comes before them if ``network.comes_along``
    wanted  what it returns after the predictive distributions, see ``WANTED``
    views   which view each draw looks at, see :func:`abnn.model.views.views_of`; the plain network looks at the first
    """

    def __init__(self, network: AttachedNetwork, noise: Noise, wanted: str, views: tuple[int, ...]) -> None:
        self.network, self.wanted = network, wanted
        self.notes = wanted in ("score", "evidence")  # whether features are noted
        self.views = (0, *views) if network.comes_along and views else views
        ordered = sorted(set(self.views))
        self.run = Pass(network, noise, tuple(ordered.index(view) for view in self.views), noting=self.notes)
        self.compute: Callable[[Any, Any], Outputs] | None = None  # a compiled outputs(), if there is one

    def __call__(self, x: Any) -> Outputs:
        """Return the outputs of one pass, see ``Outputs``."""
        if self.notes:
            self.run.take_features()  # those of a pass that failed in the middle
        try:
            return (self.compute or self.outputs)(side_by_side(x, self.views), x)
        except RuntimeError as error:
            if tuple(x.shape[1:]) == self.network.input_shape:
                raise
            shape = self.network.input_shape
            accepted = f"inputs of shape {shape}, as the model was attached with, or others that it can take"
            actual = f"inputs of shape {tuple(x.shape[1:])}, on which the network fails: {summary(error)}"
            raise InputError(explain("x", actual, accepted)) from error
        except IndexError as error:
            if x.is_floating_point():
                raise
            raise without_embedding(x, error) from error

    def outputs(self, rows: Batch, x: Batch) -> Outputs:
        """Return the outputs for ``rows``, all views of the inputs ``x``. This is the function that can be compiled."""
        outputs = self.run(rows)
        samples = self.network.task.samples(outputs)
        if self.wanted == "samples":
            return (samples,)
        if self.wanted == "outputs":
            return samples, outputs
        evidence = self.network.gather(self.run, outputs, nearest=True)
        if self.wanted == "evidence":
            return samples, outputs, evidence.statistics, evidence.last
        return samples, judge(self.network, evidence)


def judge(network: AttachedNetwork, evidence: Evidence) -> Tensor:
    """Return the learnt score, its parts, and the share of attachments or, if the task has them, widths.

    Shape: [B, 1 + parts + ...]
    """
    value, parts, share = network.combined.judge(evidence)
    spread = network.combined.widths
    rest = share[:, None] if spread is None else spread(evidence)
    return torch.cat([value[:, None], parts, rest], dim=1)


def to_device(x: Batch, device: torch.device) -> Any:
    """Return the batch on the device, not as inference tensors: a compiler treats these as other types."""
    with torch.inference_mode(False):
        return rows_of(x, lambda rows: rows.to(device))
