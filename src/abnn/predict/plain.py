"""A network without attachments, with the same ``predict`` as an attached one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from abnn.errors import InputError, explain
from abnn.model.blocks import check_example
from abnn.model.calls import logits_of
from abnn.model.inputs import Batch, call, forms_of
from abnn.model.shadow import shadow, turn_of
from abnn.predict.inputs import check_inputs
from abnn.predict.prediction import Prediction


class Plain:
    """A network without attachments: one draw and no distances.

    It is for comparisons: everything that scores, calibrates or evaluates attached models accepts it too.

    example  one or a few inputs, on any device
    """

    def __init__(self, network: nn.Module, example: Any) -> None:
        self.network = network
        example = check_example(network, example) if not isinstance(example, Tensor) else example
        self.example, self.input_forms = example[:1], forms_of(example)
        self.input_shape = tuple(example.shape[1:])
        self.input_dtype = example.dtype
        self.score = "entropy"
        self.triage: Any = None
        with torch.no_grad():
            self.classes: int = self._logits(example[:1]).shape[1]

    def predict(self, x: Any, draws: int | None = None, seed: int | None = 0, score: str | None = None) -> Prediction:
        """Return the network's prediction. ``draws`` and ``seed`` change nothing; all models accept them."""
        x = check_inputs(self, x)
        with torch.inference_mode():
            probs = self._logits(x).float().softmax(1)
        prediction = Prediction(probs[None].clone(), default=score or self.score)
        return prediction if self.triage is None else self.triage.add_to(prediction)

    def _logits(self, x: Batch) -> Tensor:
        network = shadow(self.network)[id(self.network)]
        with turn_of(self.network):
            logits = logits_of(call(network, x.to(device_of(self.network, x.device))))
        if logits is None:
            actual = "one whose output has no tensor"
            raise InputError(explain("network", actual, "one that returns logits", "Wrap it."))
        return logits


def device_of(network: nn.Module, otherwise: torch.device) -> torch.device:
    """Return the device of the network's weights, or ``otherwise`` if it has none."""
    return next((parameter.device for parameter in network.parameters()), otherwise)
