"""One prediction, from inputs to the result: draws and inputs in parts that fit into memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from abnn.errors import InputError, explain, not_negative, whole_seed
from abnn.model.network import AttachedNetwork
from abnn.model.views import can_move, check_views, views_of
from abnn.predict.chunks import plan
from abnn.predict.inputs import LateCheck, check_channels, check_inputs
from abnn.predict.prediction import PREDICTIONS, Prediction
from abnn.predict.results import Results
from abnn.predict.runtime import runtime_of
from abnn.scores import find_score, without_statistics


def predict(
    model: AttachedNetwork,
    x: Any,
    draws: int | None = None,
    seed: int | None = 0,
    score: str | None = None,
    memory_limit: int | None = None,
    replay: bool = True,
    views: int | None = None,
) -> Prediction:
    """Return the prediction for one batch; arguments as in :meth:`abnn.attached.Attached.predict`.

    Inputs and draws are cut into chunks (:mod:`abnn.predict.chunks`). On CUDA, passes run as graphs
    (:mod:`abnn.predict.replay`).
    """
    draws = model.usual_draws if draws is None else not_negative("draws", draws)
    model.check_attached()
    if (dtype := model.layers[0].weight_mean.dtype) != model.weight_dtype:
        fix = "Convert the network before attaching."
        raise InputError(explain("model", f"weights converted to {dtype}", f"{model.weight_dtype}, as attached", fix))
    on_cuda = isinstance(x, Tensor) and x.is_cuda
    x = check_inputs(model, x, values=not on_cuda)
    value_check = LateCheck(x) if on_cuda and x.is_floating_point() else None
    has_learnt_score = model.is_judge
    if has_learnt_score:
        check_channels(model, x)
    distribution = model.task.distribution
    default = score or model.score
    if not score and not has_learnt_score and find_score(default).statistics:
        default = model.task.first_score
    if find_score(default, about=distribution).statistics and not has_learnt_score:
        raise without_statistics(default)
    form = x.shape[1:], x.dtype
    count = draws or (model.views if views is None else views)  # with mean weights, one draw for each view
    if views is None:
        views = model.views if can_move(*form) else 1  # images may be smaller than the example
    views = min(check_views(views, *form), count)
    chunks = plan(model, x, count, memory_limit, views, plain=model.comes_along)
    noise_seed = int(torch.randint(2**62, ())) if seed is None else whole_seed(seed)
    runtime, results = runtime_of(model), Results(model, chunks, has_learnt_score)
    with torch.inference_mode(), runtime.turn(model.device):
        if has_learnt_score:
            model.make_constants()
        for draw_range in chunks.draws:
            if draws:
                noise = runtime.noise.get(model.layers, draw_range, noise_seed, fresh=seed is None)
            else:
                noise = runtime.noise.none(model.layers, len(draw_range))
            wanted, draw_views = results.wanted(draw_range), views_of(draw_range, views)
            run = runtime.runner(model, noise, wanted, draw_views, replay, repeated=len(chunks.inputs) > 1)
            for rows in chunks.inputs:
                results.add(draw_range, rows, run(x[rows]))
        score_and_parts = results.judgement()
    if value_check is not None:
        value_check.check()
    names = [] if score_and_parts is None else model.combined.names
    return PREDICTIONS[distribution].of_pass(results.samples, score_and_parts, names, default, views)
