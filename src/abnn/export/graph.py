"""An attached network as one function from a batch to everything that a prediction says: this is what is exported.

It computes what :meth:`abnn.Attached.predict` computes, by the same functions: one pass, its score and parts, verdicts and stated
probabilities. Weights of the draws are made beforehand and become constants.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.noise import no_noise, seeded_noise
from abnn.export.schema import said_by
from abnn.model.inputs import Inputs
from abnn.model.views import side_by_side, views_of
from abnn.predict.passes import PredictionPass
from abnn.predict.prediction import NumberPrediction, Prediction


class Graph(nn.Module):
    """``forward`` takes the inputs one after the other and returns the outputs that ``names`` lists, in that order.

    model        an attached network on the CPU
    example      what it predicts with these draws: it tells views, score, parts and thresholds
    draws, seed  of the predictions; 0: mean weights
    """

    def __init__(self, model: Any, example: Prediction, draws: int, seed: int) -> None:
        super().__init__()
        views = example.views or 1
        noise = seeded_noise(model.layers, range(draws), seed) if draws else no_noise(model.layers, views)
        wanted = "samples" if example.combined is None else "score"
        self.run = PredictionPass(model, noise, wanted, views_of(range(draws or views), views))
        with torch.no_grad():
            self.run.run.keep_weights()
        model.make_constants()
        self.net, self.closed_form, self.combined = self.run.run.net, model.closed_form, model.combined
        self.draws, self.seed, self.inputs = draws, seed, model.input_forms and list(model.input_forms)
        self.score, self.triage, self.parts = example.default, example.triage, list(example.parts or ())
        self.kind = type(example)
        self.names = [*self._said(example)]

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        x = values[0] if self.inputs is None else Inputs(dict(zip(self.inputs, values)))
        samples, *more = self.run.outputs(side_by_side(x, self.run.views), x)
        assert samples is not None
        prediction = self.kind.of_pass(samples, more[0] if more else None, self.parts, self.score, None)
        return tuple(self._said(replace(prediction, triage=self.triage)).values())

    def _said(self, prediction: Prediction) -> dict[str, Tensor]:
        said = said_by(prediction)
        if prediction.parts is not None:
            said["parts"] = torch.stack([*prediction.parts.values()], dim=1)
        if prediction.levels is not None:
            said["verdict"] = 2 - (prediction.score[:, None] <= prediction.levels).long().sum(1)
            if not isinstance(prediction, NumberPrediction) and prediction.stated is not None:
                said["stated"] = prediction.stated
        return said
