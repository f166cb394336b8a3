"""What one pass of a prediction computes: the predictive distribution of every draw, the learnt score and its parts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from abnn.bayes.noise import Noise
from abnn.errors import InputError, explain
from abnn.model.blocks import summary
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.model.views import side_by_side

Outputs = tuple[Tensor, Tensor | None]
"""Predictive distributions [S, B, K]; the learnt score and its parts, [B, 1 + parts], where there are any."""


class PredictionPass:
    """Passes of an attached network with the same draws and views.

    noise   of the draws; the plain network comes before them where the network says so
    judged  whether the learnt score and its parts are wanted as well
    views   which view each draw looks at, see :func:`abnn.model.views.views_of`; the plain network sees the first
    """

    def __init__(self, network: AttachedNetwork, noise: Noise, judged: bool, views: tuple[int, ...]) -> None:
        self.network, self.judged = network, judged
        self.views = (0, *views) if network.state.plain and views else views
        ordered = sorted(set(self.views))
        self.run = Pass(network, noise, tuple(ordered.index(view) for view in self.views), noting=judged)
        self.compute: Callable[[Tensor, Tensor], Outputs] | None = None  # in the place of outputs(), compiled

    def __call__(self, x: Tensor) -> Outputs:
        """What one pass says about the inputs, see ``Outputs``."""
        if self.judged:
            self.run.take_features()  # of a pass that failed in the middle
        try:
            return (self.compute or self.outputs)(side_by_side(x, self.views), x)
        except RuntimeError as error:
            if tuple(x.shape[1:]) == self.network.input_shape:
                raise
            accepted = f"inputs of shape {self.network.input_shape}, as the model was attached with, or others that it can take"
            actual = f"inputs of shape {tuple(x.shape[1:])}, on which the network fails: {summary(error)}"
            raise InputError(explain("x", actual, accepted)) from error

    def outputs(self, rows: Tensor, x: Tensor) -> Outputs:
        """What is computed from all views of the inputs and the inputs as they are; this is what can be compiled."""
        outputs = self.run(rows)
        samples = self.network.task.samples(outputs)
        if not self.judged:
            return samples, None
        value, parts = self.network.combined(self.network.gather(self.run, outputs))
        return samples, torch.cat([value[:, None], parts], dim=1)


def moved(x: Tensor, device: torch.device) -> Tensor:
    """On the device, and an ordinary tensor there: compilers tell those of inference mode from others."""
    with torch.inference_mode(False):
        return x.to(device)
