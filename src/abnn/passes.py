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
from abnn.views import side_by_side

if TYPE_CHECKING:
    from abnn.attached import Attached

Outputs = tuple[Tensor, Tensor | None]


def one_pass(model: Attached, noise: Noise, plain: bool, seen: tuple[int, ...], x: Tensor) -> Outputs:
    """softmax(z_s) for every draw, [S, B, K]; with ``plain``, also the places of the inputs, [B, 1 + K].

    seen  which view each draw looks at, see :func:`abnn.views.views_of`
    """
    from abnn.attached import hold_noise, set_noise

    shown, seen = side_by_side(x, seen)
    held = hold_noise(model)
    set_noise(model, noise)
    try:
        with evaluating(model), model.looking(seen):
            make_kept_weights(model)
            if plain and model.carries:
                with model.carrying() as carried:
                    return _run(model, carried, shown)
            probs, _ = _run(model, None, shown)
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
    if carried is None:
        return probs, None
    return probs, model.distance.places(x[: carried.rows], model.distance.join(carried.noted))


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
