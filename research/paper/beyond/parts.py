"""The five measurements. Each takes the same models and test inputs, and gives numbers as JSON can hold them.

The random numbers of a change are the same for all severities, strengths, models and seeds of training, so that what
differs between two numbers is what they are about.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.attached import Attached
from abnn.baselines import Trained
from abnn.baselines.base import AUTHORS_NOISE
from abnn.config import PRESETS
from abnn.data.digits import Labelled
from abnn.metrics import auroc, calibration, misclassification
from abnn.model.views import shifted
from abnn.outliers import Outliers, make_outliers
from abnn.predict import Prediction, concatenate
from abnn.train.width import widen
from research.metrics import severity_correlation
from research.paper.beyond.corruptions import CORRUPTIONS, corrupt

SEED = 0
"""Of everything random here."""
CHUNK = 250
SEVERITIES = tuple(round(0.1 * step, 1) for step in range(11))
GENERATORS: dict[str, dict[str, Any]] = {
    "noise": {},
    "patches": {},
    "blobs": {},
    "backgrounds": {},
    "leaves": {},
    "style": {"severity": (0.0, 1.0)},
}
"""With their options: a change of style counts as 0.3 in training at most, and here goes from nothing to all it can do."""
FAR = 5000.0
FAR_KINDS = (f"inputs x {FAR:g}", f"constants x {FAR:g}", "inputs + noise 16")
QUANTILE = 0.99
COUNTS = (0, 1, 2, 5, 10, 20, 50)
"""Numbers of draws; 0: mean weights."""
WIDTH_EVERY = 5
"""Every so many known inputs choose the width of the posterior, and are not counted then."""
VIEWS = (1, 3, 5, 9)
STRENGTHS = (1, 2, 3, 4, 5)

USUAL = "usual"
"""Predictions have as many draws as models make when they are not told; entries say how many."""

Models = Mapping[str, Trained]


@dataclass(frozen=True)
class Inputs:
    """The in-distribution test inputs, and those of all other sets of a task by name."""

    known: Labelled
    others: Mapping[str, Tensor]


@dataclass(frozen=True)
class Part:
    """One measurement: its function, and whether it looks at the other sets."""

    measure: Callable[[Models, Inputs], dict[str, Any]]
    settings: dict[str, Any]
    others: bool = False


def severity_curves(models: Models, inputs: Inputs) -> dict[str, Any]:
    """For each generator and severity: mean score, mean confidence, accuracy, and AUROC against the unchanged inputs.

    ``rank_correlation`` is Spearman's, of the mean score with the severity: 1 where it never falls.
    """
    x, y = inputs.known
    results: dict[str, Any] = {}
    for name, model in models.items():
        clean = predict(model, x)
        results[name] = {}
        for kind, options in GENERATORS.items():
            outliers = make_outliers(kind, **options)
            outliers.prepare(0.0, 1.0)
            said = [clean if level == 0 else predict(model, changed(outliers, x, y, level)) for level in SEVERITIES]
            curves = columns(
                {
                    "score": mean(each.score),
                    "confidence": mean(each.probs.amax(1)),
                    "accuracy": mean(each.label == y),
                    "auroc": auroc(clean.score, each.score),
                }
                for each in said
            )
            results[name][kind] = {**curves, "rank_correlation": rank_correlation(curves["score"])}
    return results


def far_away(models: Models, inputs: Inputs) -> dict[str, Any]:
    """Share of inputs far outside whose score is above the 99 % quantile of test inputs, and mean confidence there.

    A network of ReLUs that goes on linearly for ever becomes the surer the farther an input is (Hein et al., 2019).
    """
    x, y = inputs.known
    kinds = {"unchanged": x, **far_inputs(x, y)}
    results: dict[str, Any] = {}
    for name, model in models.items():
        said = {kind: predict(model, each) for kind, each in kinds.items()}
        limit = float(np.quantile(said["unchanged"].score.numpy(), QUANTILE))
        results[name] = {
            kind: {
                "above": float((each.score > limit).double().mean()),
                "confidence": mean(each.probs.amax(1)),
                "auroc": auroc(said["unchanged"].score, each.score),
            }
            for kind, each in said.items()
        }
    return results


def numbers_of_draws(models: Models, inputs: Inputs) -> dict[str, Any]:
    """Accuracy, NLL, ECE, errors against right predictions and every other set against the known one, over draws.

    Mean weights come first, then draws of the widest posterior that held-out inputs allow (:mod:`abnn.train.width`): what draws
    add. ``width`` is how wide it is. The networks stay as they are.
    """
    x, y = inputs.known
    held_out = torch.arange(len(x)) % WIDTH_EVERY == 0
    results: dict[str, Any] = {}
    for name, model in models.items():
        counts = COUNTS if model.method.random else (1,)
        wide, width = widened(model, Labelled(x[held_out], y[held_out]))
        rows = []
        for count in counts:
            others = {other: predict(wide, each, count) for other, each in inputs.others.items()}
            rows.append(overall(predict(wide, x[~held_out], count), y[~held_out], others))
        results[name] = {"draws": list(counts), **columns(rows), "width": width}
    return results


def numbers_of_views(models: Models, inputs: Inputs) -> dict[str, Any]:
    """The same over the number of views that a prediction looks at, see :mod:`abnn.model.views`: what more than one adds.

    Attachments look at each view with mean weights; a plain network is averaged over the views.
    """
    x, y = inputs.known
    results: dict[str, Any] = {}
    for name, model in models.items():
        rows = []
        for count in VIEWS:
            others = {other: look(model, each, count) for other, each in inputs.others.items()}
            rows.append(overall(look(model, x, count), y, others))
        results[name] = {"views": list(VIEWS), **columns(rows)}
    return results


def corrupted(models: Models, inputs: Inputs) -> dict[str, Any]:
    """Quality on corrupted inputs whose label still holds: accuracy, confidence, ECE, NLL, errors, and mean score.

    Strength 0 is the unchanged inputs, the first number of each list.
    """
    x, y = inputs.known
    results: dict[str, Any] = {}
    for name, model in models.items():
        clean = predict(model, x)
        results[name] = {}
        for kind in CORRUPTIONS:
            said = [clean, *(predict(model, corrupt(x, kind, strength, SEED)) for strength in STRENGTHS)]
            curves = columns({**quality(each, y), "score": mean(each.score)} for each in said)
            results[name][kind] = {**curves, "rank_correlation": rank_correlation(curves["score"])}
    return results


PARTS: dict[str, Part] = {
    "severity": Part(
        severity_curves, {"draws": USUAL, "seed": SEED, "severities": list(SEVERITIES), "generators": GENERATORS}
    ),
    "far": Part(far_away, {"draws": USUAL, "seed": SEED, "factor": FAR, "quantile": QUANTILE, "noise": AUTHORS_NOISE}),
    "draws": Part(numbers_of_draws, {"draws": list(COUNTS), "seed": SEED, "width_every": WIDTH_EVERY}, others=True),
    "views": Part(
        numbers_of_views,
        {"draws": USUAL, "views": list(VIEWS), "usual_views": PRESETS["default"].views, "seed": SEED},
        others=True,
    ),
    "corrupted": Part(
        corrupted,
        {"draws": USUAL, "seed": SEED, "amounts": {name: list(amounts) for name, (_, amounts) in CORRUPTIONS.items()}},
    ),
}


def predict(model: Trained, x: Tensor, draws: int | None = None) -> Prediction:
    return concatenate([model.predict(part, draws, SEED).apply(Tensor.cpu) for part in x.split(CHUNK)])


def look(model: Trained, x: Tensor, views: int) -> Prediction:
    """What a prediction that looks at so many views is."""
    network = model.network
    if not isinstance(network, Attached):
        looks = [predict(model, shifted(x, view)) for view in range(views)]
        return replace(looks[0], samples=torch.cat([each.samples for each in looks]))
    usual, network.views = network.views, views
    try:
        return predict(model, x)
    finally:
        network.views = usual


def widened(model: Trained, held_out: Labelled) -> tuple[Trained, float | None]:
    """A copy of a model with the widest posterior that held-out inputs allow, and its width; others as they are, and None."""
    if not isinstance(model.network, Attached) or model.network.spec.kind != "bounded":
        return model, None
    wide = copy.copy(model)
    wide.network = copy.deepcopy(model.network)
    return wide, widen(wide.network, list(zip(held_out.x.split(CHUNK), held_out.y.split(CHUNK))))


def changed(outliers: Outliers, x: Tensor, y: Tensor, severity: float) -> Tensor:
    """All inputs changed with one severity."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.cat([outliers(a, b, generator, severity).x for a, b in zip(x.split(CHUNK), y.split(CHUNK))])


def far_inputs(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Test inputs times 5000, grey areas of one level times 5000, and test inputs with noise 16 times their range."""
    levels = torch.rand(len(x), generator=torch.Generator().manual_seed(SEED)).view(-1, 1, 1, 1)
    noisy = changed(make_outliers(AUTHORS_NOISE), x, y, 1.0)
    return dict(zip(FAR_KINDS, (FAR * x, (FAR * levels).expand_as(x).contiguous(), noisy), strict=True))


def quality(prediction: Prediction, y: Tensor) -> dict[str, float | None]:
    """Of the predictions themselves; the AUROC of errors is None where all are right or all are wrong."""
    numbers = calibration(prediction.probs, y)
    right = prediction.label == y
    mixed = bool(right.any()) and not bool(right.all())
    return {
        "accuracy": numbers.accuracy,
        "confidence": numbers.mean_confidence,
        "ece": numbers.ece,
        "nll": numbers.nll,
        "errors_auroc": misclassification(prediction.score, right).auroc if mixed else None,
    }


def overall(known: Prediction, y: Tensor, others: Mapping[str, Prediction]) -> dict[str, float | None]:
    """The quality of predictions, and how well every other set is told from the known one."""
    return quality(known, y) | {f"auroc {name}": auroc(known.score, each.score) for name, each in others.items()}


def mean(values: Tensor) -> float:
    return float(values.double().mean())


def rank_correlation(values: list[float]) -> float | None:
    """Spearman's, with the order of the list; None for a constant."""
    return None if len(set(values)) == 1 else severity_correlation(values, range(len(values)))


def columns(rows: Any) -> dict[str, list[Any]]:
    """One list for each name, instead of one dict for each row."""
    listed = list(rows)
    return {name: [row[name] for row in listed] for name in listed[0]}
