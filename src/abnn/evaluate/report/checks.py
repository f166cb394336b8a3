"""What the report needs from its input, checked before anything is computed or written."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.metrics import TierThresholds


def check(evaluations: Sequence[Evaluation], class_names: Sequence[str] | None) -> tuple[Evaluation, ...]:
    """The evaluations as a tuple, or an error that names the model and the set that cannot be reported."""
    if isinstance(evaluations, Evaluation):
        fix = "Put a single one into a list: [evaluation]."
        raise InputError(explain("evaluations", "an Evaluation", "a sequence of them", fix))
    checked = tuple(evaluations)
    others = [f"a {type(each).__name__}" for each in checked if not isinstance(each, Evaluation)]
    if others or not checked:
        fault = others[0] if others else "none"
        raise InputError(explain("evaluations", fault, "one Evaluation, or several to compare"))
    _distinct([each.name for each in checked], "evaluations", "models")
    for evaluation in checked:
        if not evaluation.sets:
            fix = "Evaluate the model on at least one set."
            raise InputError(explain(f"evaluation {evaluation.name!r}", "no sets", "at least one set", fix))
        _distinct([each.name for each in evaluation.sets], f"evaluation {evaluation.name!r}", "sets")
        for each in (evaluation.thresholds, *evaluation.class_thresholds):
            if each is not None:
                TierThresholds(*each)
        for result in evaluation.sets:
            where = f"set {result.name!r} of {evaluation.name!r}"
            if evaluation.score not in result.scores:
                raise unknown(f"score of {where}", evaluation.score, result.scores)
            _check_numbers(result, evaluation.score, where)
            _check_images(result, where)
            if class_names is not None and len(class_names) != result.probs.shape[1]:
                accepted = f"{result.probs.shape[1]} names, one for each class of {where}"
                raise InputError(explain("class_names", f"{len(class_names)} names", accepted))
    return checked


def _check_numbers(result: SetResult, score: str, where: str) -> None:
    if len(result) == 0:
        fix = f"All inputs may have been skipped ({len(result.skipped)}); leave the set out or repair its files."
        raise InputError(explain(where, "no inputs", "at least one input", fix))
    if bad := int(np.count_nonzero(~np.isfinite(result.scores[score]))):
        fault = f"{bad} of {len(result)} values that are NaN or infinite"
        fix = "Find out why the model gave them; leaving such inputs out would flatter it."
        raise InputError(explain(f"score {score!r} of {where}", fault, "finite numbers", fix))
    if result.probs.ndim != 2 or not np.isfinite(result.probs).all():
        fault = f"an array of shape {result.probs.shape}, {np.count_nonzero(~np.isfinite(result.probs))} not finite"
        raise InputError(explain(f"probs of {where}", fault, "finite probabilities of shape (inputs, classes)"))


def _check_images(result: SetResult, where: str) -> None:
    shown, images = result.shown, result.images
    if len(shown) != len(images):
        fault = f"{len(images)} pictures for {len(shown)} numbers in shown"
        raise InputError(explain(f"images of {where}", fault, "one picture for each number in shown"))
    if len(shown) and not 0 <= min(shown) <= max(shown) < len(result):
        fault = f"numbers from {min(shown)} to {max(shown)}"
        raise InputError(explain(f"shown of {where}", fault, f"numbers of inputs, 0 to {len(result) - 1}"))
    coloured = images.ndim == 4 and images.shape[3] == 3
    if len(shown) and (images.dtype != np.uint8 or not (images.ndim == 3 or coloured)):
        fault = f"{images.dtype} of shape {images.shape}"
        fix = "Scale pictures to 0..255 and move the channels last."
        raise InputError(explain(f"images of {where}", fault, "uint8 [M, H, W] or [M, H, W, 3]", fix))


def _distinct(names: Sequence[str], argument: str, what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        fix = "Rename them, so that a reader can tell them apart."
        raise InputError(explain(argument, f"several {what} named {twice[0]!r}", "a different name for each", fix))
