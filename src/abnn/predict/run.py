"""From inputs to predictions: draws and inputs in parts that fit into memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from abnn.errors import InputError, explain, not_negative, whole_seed
from abnn.model.network import AttachedNetwork
from abnn.model.views import can_move, check_views, views_of
from abnn.predict.chunks import plan
from abnn.predict.inputs import LateCheck, check_inputs
from abnn.predict.judgement import Judgement
from abnn.predict.prediction import PREDICTIONS, Prediction
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
    """Return what the model says about one batch; arguments as in :meth:`abnn.attached.Attached.predict`.

    Inputs and draws go through in chunks (:mod:`abnn.predict.chunks`), on CUDA as graphs (:mod:`abnn.predict.replay`).
    """
    draws = model.usual_draws if draws is None else not_negative("draws", draws)
    model.check_attached()
    if (dtype := model.layers[0].weight_mean.dtype) != model.weight_dtype:
        fix = "Convert the network before attaching."
        raise InputError(explain("model", f"weights converted to {dtype}", f"{model.weight_dtype}, as attached", fix))
    late = isinstance(x, Tensor) and x.is_cuda
    x = check_inputs(model, x, values=not late)
    look = LateCheck(x) if late and x.is_floating_point() else None
    judged = model.is_judge
    distribution = model.task.distribution
    default = score or (model.score if judged or not find_score(model.score).statistics else model.task.first_score)
    if find_score(default, about=distribution).statistics and not judged:
        raise without_statistics(default)
    form = x.shape[1:], x.dtype
    count = draws or (model.views if views is None else views)  # with mean weights, one for each view
    if views is None:
        views = model.views if can_move(*form) else 1  # images may be smaller than the example
    views = min(check_views(views, *form), count)
    chunks = plan(model, x, count, memory_limit, views, plain=model.comes_along)
    number = int(torch.randint(2**62, ())) if seed is None else whole_seed(seed)
    runtime, device = runtime_of(model), model.device
    first = int(model.comes_along)
    samples: Tensor | None = None
    judgement = Judgement(model, chunks, first) if judged else None
    with torch.inference_mode(), runtime.turn(device):
        if judged:
            model.make_constants()
        for numbers in chunks.draws:
            wanted = judgement.wanted(numbers) if judgement else "samples"
            if draws:
                noise = runtime.noise.get(model.layers, numbers, number, fresh=seed is None)
            else:
                noise = runtime.noise.none(model.layers, len(numbers))
            of_draws = views_of(numbers, views)
            run = runtime.runner(model, noise, wanted, of_draws, replay, repeated=len(chunks.inputs) > 1)
            for rows in chunks.inputs:
                part, *more = run(x[rows])
                assert part is not None
                if samples is None:
                    with torch.inference_mode(False):  # so that autograd can use it
                        samples = torch.empty(first + count, len(x), *part.shape[2:], dtype=part.dtype, device=device)
                if len(part) == len(samples):
                    samples[:, rows] = part
                else:
                    samples[:first, rows] = part[:first]
                    samples[first + numbers.start : first + numbers.stop, rows] = part[first:]
                if judgement is not None:
                    judgement.add(numbers, rows, more)
        score_and_parts = None if judgement is None else judgement.finish()
    assert samples is not None
    if look is not None:
        look.check()
    names = [] if score_and_parts is None else model.combined.names
    return PREDICTIONS[distribution].of_pass(samples, score_and_parts, names, default, views)
