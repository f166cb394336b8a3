"""One pass of an attached network for a prediction: all draws of some inputs, and their places where these are needed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abnn.bayes.noise import Noise, holding
from abnn.errors import InputError, explain
from abnn.model.attached_block import Notes
from abnn.model.blocks import evaluating, summary
from abnn.model.views import side_by_side

if TYPE_CHECKING:
    from abnn.model.attached import Attached

Outputs = tuple[Tensor, Tensor | None]


def one_pass(model: Attached, noise: Noise, placed: bool, seen: tuple[int, ...], x: Tensor) -> Outputs:
    """softmax(z_s) for every draw, [S, B, K]; with ``placed``, also the places of the inputs, [B, 1 + K].

    noise  of the draws; with ``placed``, ahead of them one without noise, whose features say where inputs lie
    seen   which view each draw looks at, see :func:`abnn.model.views.views_of`; the one without noise sees the first
    """
    shown, seen = side_by_side(x, (0, *seen) if placed and seen else seen)
    noting = model.mean_network.noting() if placed else contextlib.nullcontext()
    with holding(model.layers, noise), evaluating(model), model.looking(seen), noting as notes:
        make_kept_weights(model)
        return _run(model, notes, shown)


def outputs(model: Attached, notes: Notes | None, x: Tensor) -> Outputs:
    """What a pass computes with the noise and in the mode that the model is in; this is what can be compiled."""
    logits = model.draw_logits(x)
    if logits.ndim != 3 or logits.shape[2] < 2:
        given = f"a network with outputs of shape {tuple(logits.shape[2:])} for each input"
        raise InputError(explain("model", given, "one logit for each of two or more classes"))
    if notes is None:
        return logits.float().softmax(2), None
    inputs = x[: logits.shape[1]]  # as they are, ahead of their other views
    return logits[1:].float().softmax(2), model.distance.places(inputs, model.distance.join(notes.noted))


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


def _run(model: Attached, notes: Notes | None, x: Tensor) -> Outputs:
    try:
        return (model.compiled or outputs)(model, notes, x)
    except RuntimeError as error:
        if tuple(x.shape[1:]) == model.input_shape:
            raise
        wanted = f"inputs of shape {model.input_shape}, as the model was attached with, or others that it can take"
        given = f"inputs of shape {tuple(x.shape[1:])}, on which the network fails: {summary(error)}"
        raise InputError(explain("x", given, wanted)) from error
