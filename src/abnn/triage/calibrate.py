"""From held-out data to a Triage: gather scores once, then choose thresholds."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.config import COST_KINDS, TriageConfig
from abnn.errors import AbnnWarning, InputError, explain
from abnn.outliers import DEFAULT, make_outliers, measure_range
from abnn.train.batches import check_batch
from abnn.train.watch import progress_bar
from abnn.triage.drift import LEAST_SCORES, split_reference
from abnn.triage.temperature import choose_temperature
from abnn.triage.thresholds import best_split, cheapest_thresholds, conformal_quantile, least_count, lift
from abnn.triage.triage import Triage

LEAST_OUTLIERS = 1000
PROBES = 8
"""So many good inputs are scored alone, too, to see how far rounding depends on the batch."""


def calibrate(
    model: Any,
    loader: Iterable[Any],
    config: TriageConfig = TriageConfig(),
    outliers: Any = DEFAULT,
    value_range: tuple[Any, Any] | None = None,
    progress: bool = True,
) -> Triage:
    """Return thresholds chosen with held-out good data that the model was not fitted on; they become ``model.triage``.

    ``notice`` is the conformal quantile of the good scores. ``reject`` is where outliers with their content destroyed
    (severity above one half) separate best from the rest, good data and mild outliers, but never below the conformal
    quantile for ``rejected``. Both are lifted by the resolution of the scores, see :func:`abnn.triage.thresholds.lift`.
    Too few inputs for ``noticed`` are an error; too few for ``rejected`` give a warning, and a weaker promise.

    loader       yields (x, y) every time it is iterated; it is read more than once
    outliers     made from the good data, or a data set of real ones
    value_range  (low, high) of the inputs, for made-up outliers; None: that of ``outliers`` if its prepare() set one, else
                 measured from ``loader``
    """
    model.triage = choose(gather(model, loader, config, outliers, value_range, progress), config)
    return model.triage


@dataclass(frozen=True)
class Gathered:
    """Everything that choosing thresholds needs.

    good, predicted, right   of each held-out input: its score, predicted class, and whether that is its label
    log_probs, labels        of each held-out input: ln of its averaged prediction [N, K], and its label
    mild, severe             scores of outliers with severity at most, and above, one half
    classes, score, draws, seed   of the model and its predictions
    drawn, views             how many draws the predictions had, whatever was asked for, and views; None: not known
    class_names              for messages; None: numbers
    rounding                 the largest difference between the scores of some inputs alone and in their batch
    """

    good: np.ndarray
    predicted: np.ndarray
    right: np.ndarray
    log_probs: np.ndarray
    labels: np.ndarray
    mild: np.ndarray
    severe: np.ndarray
    classes: int
    score: str
    draws: int
    seed: int
    drawn: int | None = None
    views: int | None = None
    class_names: Sequence[str] | None = None
    rounding: float = 0.0


def gather(
    model: Any,
    loader: Iterable[Any],
    config: TriageConfig = TriageConfig(),
    outliers: Any = DEFAULT,
    value_range: tuple[Any, Any] | None = None,
    progress: bool = False,
) -> Gathered:
    """Return scores of good inputs and of outliers, with memory for one batch and for the predictions of good inputs.

    ``loader`` is read once for good inputs, and then as often as it takes to make ``LEAST_OUTLIERS`` outliers, at least
    once: the best split is flat, and with a few hundred outliers chance decides where in the flat part it lies.
    """
    if not (hasattr(model, "predict") and hasattr(model, "input_shape")):
        accepted = "a model that abnn.attach() returned, or another with its predict()"
        fix = "Attach first, or calibrate the network as it is: abnn.predict.Plain(network, x[:1])."
        raise InputError(explain("model", type(model).__name__, accepted, fix))
    if isinstance(loader, Iterator):
        accepted = "a DataLoader or a list of (x, y) batches"
        raise InputError(explain("loader", "an iterator, which can be read once", accepted))
    rows: list[tuple[np.ndarray, ...]] = []
    draws = getattr(model, "usual_draws", 10) if config.draws is None else config.draws
    common: dict[str, Any] = {"draws": draws, "seed": config.seed, "classes": model.classes}
    with progress_bar(disable=not progress) as bar:
        length = len(loader) if isinstance(loader, Sized) else None
        task = bar.add_task("calibrating", total=length, status="scores of good inputs")

        def batches() -> Iterator[tuple[Tensor, Tensor]]:
            for batch in loader:
                yield check_batch(model, batch)
                bar.advance(task)

        def predict_good() -> Iterator[Tensor]:
            for x, y in batches():
                prediction = model.predict(x, draws=draws, seed=config.seed)
                if not rows:
                    common["score"] = config.score or prediction.default
                    common.update(drawn=len(prediction.samples), views=prediction.views)
                predicted, labels = prediction.label.cpu().numpy(), y.cpu().numpy()
                log_probs = prediction.probs.float().log().cpu().numpy()
                scores = _scores(prediction, common["score"])
                if not rows:
                    parts = [model.predict(each, draws=draws, seed=config.seed) for each in x[:PROBES].split(1)]
                    alone = np.concatenate([_scores(part, common["score"]) for part in parts])
                    common["rounding"] = float(np.abs(alone - scores[:PROBES]).max())
                rows.append((scores, predicted, predicted == labels, log_probs, labels))
                yield x
            if not rows:
                raise InputError(explain("loader", "a loader without batches", "held-out (x, y) batches"))

        if outliers is None:
            accepted = "some, from which the threshold of reject follows"
            raise InputError(explain("outliers", "None", accepted, "Leave it out."))
        chosen = make_outliers(outliers)
        assert chosen is not None
        layout = chosen.layout_for(model)
        maker = chosen.with_range(value_range, lambda: measure_range(predict_good(), layout), layout)
        if not rows:  # the range was not measured
            for _ in predict_good():
                pass
        rounds = math.ceil(LEAST_OUTLIERS / sum(len(scores) for scores, *_ in rows))
        bar.update(task, total=len(rows) * (1 + rounds), status="scores of outliers")
        generator = torch.Generator().manual_seed(config.seed)
        mild, severe = [], []
        for _ in range(rounds):
            for x, y in batches():
                outlier = maker(x, y, generator)
                scores = _scores(model.predict(outlier.x, draws=draws, seed=config.seed), common["score"])
                far = outlier.severity.cpu().numpy() > 0.5
                mild.append(scores[~far])
                severe.append(scores[far])
    names = ("good", "predicted", "right", "log_probs", "labels")
    columns: dict[str, Any] = {name: np.concatenate(parts) for name, parts in zip(names, zip(*rows))}
    class_names = (getattr(model, "extra", None) or {}).get("class_names")
    return Gathered(
        **columns, mild=np.concatenate(mild), severe=np.concatenate(severe), class_names=class_names, **common
    )


def choose(gathered: Gathered, config: TriageConfig = TriageConfig()) -> Triage:
    """Return thresholds from gathered scores; draws, seed and score are those of the gathered predictions."""
    if not len(gathered.severe):
        fix = "Use 'auto' with more than one input in a batch, or a data set of real outliers."
        raise InputError(explain("outliers", "none with a severity above one half", "some of them", fix))
    good, noticed, rejected = gathered.good, config.noticed, config.rejected
    by_class: tuple[tuple[float, float], ...] = ()
    if config.costs is not None:
        kinds = np.where(gathered.right, COST_KINDS.index("right"), COST_KINDS.index("wrong"))
        kinds = np.concatenate([kinds, np.full(len(gathered.severe), COST_KINDS.index("far"))])
        scores = np.concatenate([good, gathered.severe])
        limits, least = np.array(cheapest_thresholds(scores, kinds, config.costs)[:2]), float(scores.min())
        below_all = 2 * least - lift(least, good, gathered.rounding)  # where not even the smallest score is worth it
        notice, reject = np.where(limits < least, below_all, lift(limits, good, gathered.rounding)).tolist()
        noticed, rejected = (float((good > limit).mean()) for limit in (notice, reject))
    else:
        split = best_split(np.concatenate([good, gathered.mild]), gathered.severe)

        def promised(scores: np.ndarray) -> tuple[float, float]:
            low = conformal_quantile(scores, noticed, confidence=config.confidence)
            floor = conformal_quantile(scores, config.rejected, strict=False, confidence=config.confidence)
            notice, reject = lift(np.array([low, max(low, floor, split)]), good, gathered.rounding)
            return float(notice), float(reject)

        notice, reject = promised(good)
        if config.per_class:
            by_class = _by_class(gathered, config, promised)
        rejected = _affordable(gathered, config)
    return Triage(
        notice=notice,
        reject=reject,
        noticed=noticed,
        rejected=rejected,
        score=gathered.score,
        draws=gathered.draws,
        seed=gathered.seed,
        inputs=len(good),
        calibration=quantiles(good),
        confidence=config.confidence,
        by_class=by_class,
        costs=config.costs,
        reference=split_reference(good, gathered.seed, gathered.rounding) if len(good) >= LEAST_SCORES else ((), ()),
        drawn=gathered.drawn,
        temperature=choose_temperature(gathered.log_probs, gathered.labels),
        views=gathered.views,
    )


def quantiles(scores: np.ndarray) -> tuple[float, ...]:
    """Return 0 %, 1 %, ..., 100 % of the scores, to seven digits."""
    values = np.quantile(scores, np.arange(101) / 100, method="inverted_cdf")
    return tuple(seven_digits(value) for value in values)


def seven_digits(value: float) -> float:
    """Return a score as quantiles are kept."""
    return float(f"{value:.7g}")


def _affordable(gathered: Gathered, config: TriageConfig) -> float:
    """Return the share of rejected good inputs that can be promised; warn where it is more than was asked for."""
    count = int(np.bincount(gathered.predicted).min()) if config.per_class else len(gathered.good)
    needed = least_count(config.rejected, config.confidence)
    if count >= needed:
        return config.rejected
    # The largest score is the threshold then, and this is what it can promise.
    share = 1 / (count + 1) if config.confidence is None else 1 - (1 - config.confidence) ** (1 / count)
    of = "of a class " if config.per_class else ""
    fix = f"The largest score is the threshold, and rejected={share:.2g} is promised instead. Hold out more data."
    message = explain("rejected", f"{config.rejected} with {count} good inputs {of}", f"at least {needed} of them", fix)
    warnings.warn(message, AbnnWarning, stacklevel=4)  # of calibrate()
    return share


def _by_class(
    gathered: Gathered, config: TriageConfig, promised: Callable[[np.ndarray], tuple[float, float]]
) -> tuple[tuple[float, float], ...]:
    """Return thresholds within each predicted class (Mondrian conformal prediction, Vovk et al. 2003).

    The split from the outliers is common to all classes: an outlier belongs to none.
    """
    counts = np.bincount(gathered.predicted, minlength=gathered.classes)
    needed = least_count(config.noticed, config.confidence)
    if small := [label for label, count in enumerate(counts) if count < needed]:
        names = [str(label) if gathered.class_names is None else gathered.class_names[label] for label in small]
        listed = ", ".join(f"{name} ({counts[label]})" for name, label in zip(names[:10], small))
        raise InputError(
            explain(
                "per_class",
                f"too few good inputs predicted as {listed}{', ...' if len(small) > 10 else ''}",
                f"at least {needed} for each class to promise {config.noticed:.1%}",
                "Hold out more data, promise less, or calibrate all classes together.",
            )
        )
    return tuple(promised(gathered.good[gathered.predicted == label]) for label in range(gathered.classes))


def _scores(prediction: Any, name: str) -> np.ndarray:
    values = prediction.score_by(name).detach().cpu().numpy()
    if not np.isfinite(values).all():
        raise InputError(explain("model", "scores that are not finite", "finite scores", "Check its weights."))
    return values
