"""One pass of an attached network for a prediction: all draws of some inputs, and the plain network where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor, nn

from abnn.blocks import evaluating, summary
from abnn.draws import Noise
from abnn.errors import InputError, explain

if TYPE_CHECKING:
    from abnn.attached import Attached


def one_pass(model: Attached, noise: Noise, plain: bool, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """softmax(z_s) for every draw, [S, B, K]; with ``plain``, also the distance, [B]."""
    from abnn.attached import hold_noise, set_noise

    held = hold_noise(model)
    set_noise(model, noise)
    try:
        with evaluating(model):
            if not plain:
                return _probabilities(model, x), None
            if not model.carries:
                return _probabilities(model, x), model.distance.distance(model.distance.features(x))
            with model.carrying() as carried:
                probs = _probabilities(model, x)
            return probs, model.distance.distance(model.distance.join(carried.noted))
    finally:
        set_noise(model, held)


def modules_of(model: Attached) -> Iterator[nn.Module]:
    """All that a pass reads: where it does not carry the plain network, that may have blocks of its own."""
    yield from model.modules()
    if not model.carries:
        yield from model.backbone.modules()


def _probabilities(model: Attached, x: Tensor) -> Tensor:
    """softmax(z_s) for every held draw, [S, B, K]."""
    try:
        logits = model.draw_logits(x)
    except RuntimeError as error:
        if tuple(x.shape[1:]) == model.input_shape:
            raise
        wanted = f"inputs of shape {model.input_shape}, as the model was attached with, or others that it can take"
        given = f"inputs of shape {tuple(x.shape[1:])}, on which the network fails: {summary(error)}"
        raise InputError(explain("x", given, wanted)) from error
    if logits.ndim != 3 or logits.shape[2] < 2:
        given = f"a network with outputs of shape {tuple(logits.shape[2:])} for each input"
        raise InputError(explain("model", given, "one logit for each of two or more classes"))
    return logits.float().softmax(2)
