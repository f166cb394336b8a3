"""One pass of an attached network for a prediction: all draws of some inputs, and the plain network where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from abnn.attached_block import Carried
from abnn.blocks import evaluating, summary
from abnn.draws import Noise
from abnn.errors import InputError, explain

if TYPE_CHECKING:
    from abnn.attached import Attached

Outputs = tuple[Tensor, Tensor | None]


def one_pass(model: Attached, noise: Noise, plain: bool, x: Tensor) -> Outputs:
    """softmax(z_s) for every draw, [S, B, K]; with ``plain``, also the places of the inputs, [B, 1 + K]."""
    from abnn.attached import hold_noise, set_noise

    held = hold_noise(model)
    set_noise(model, noise)
    try:
        with evaluating(model):
            make_kept_weights(model)
            if plain and model.carries:
                with model.carrying() as carried:
                    return _run(model, carried, x)
            probs, _ = _run(model, None, x)
            return probs, model.distance.places(x, model.distance.features(x)) if plain else None
    finally:
        set_noise(model, held)


def outputs(model: Attached, carried: Carried | None, x: Tensor) -> Outputs:
    """What a pass computes with the noise and in the mode that the model is in; this is what can be compiled."""
    logits = model.draw_logits(x)
    if logits.ndim != 3 or logits.shape[2] < 2:
        given = f"a network with outputs of shape {tuple(logits.shape[2:])} for each input"
        raise InputError(explain("model", given, "one logit for each of two or more classes"))
    probs = logits.float().softmax(2)
    return probs, None if carried is None else model.distance.places(x, model.distance.join(carried.noted))


def moved(x: Tensor, device: torch.device) -> Tensor:
    """On the device, and an ordinary tensor there: compilers tell those of inference mode from others."""
    with torch.inference_mode(False):
        return x.to(device)


def make_kept_weights(model: Attached) -> None:
    """All drawn weights that are kept for several passes, before the first of them: every pass then is the same work."""
    for layer in model.layers:
        if layer.made is not None:
            for use in range(layer.uses):
                layer.weights(use)


def modules_of(model: Attached) -> Iterator[nn.Module]:
    """All that a pass reads: where it does not carry the plain network, that may have blocks of its own."""
    yield from model.modules()
    if not model.carries:
        yield from model.backbone.modules()


def _run(model: Attached, carried: Carried | None, x: Tensor) -> Outputs:
    try:
        return (model.compiled or outputs)(model, carried, x)
    except RuntimeError as error:
        if tuple(x.shape[1:]) == model.input_shape:
            raise
        wanted = f"inputs of shape {model.input_shape}, as the model was attached with, or others that it can take"
        given = f"inputs of shape {tuple(x.shape[1:])}, on which the network fails: {summary(error)}"
        raise InputError(explain("x", given, wanted)) from error
