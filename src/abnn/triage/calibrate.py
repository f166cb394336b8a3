"""Calibrate: gather scores of held-out data once, then choose thresholds from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.config import DRAWS
from abnn.decisions import COST_KINDS, Costs, TriageConfig
from abnn.errors import AbnnWarning, InputError, explain
from abnn.model.inputs import main_input
from abnn.outliers import DEFAULT, make_outliers, measure_range
from abnn.predict import Prediction, concatenate
from abnn.tensors import row_hashes
from abnn.train.batches import check_batch
from abnn.train.watch import progress_bar
from abnn.triage import thresholds
from abnn.triage.drift import LEAST_SCORES, split_reference
from abnn.triage.intervals import Intervals
from abnn.triage.statements import choose_scaling, learn_statement, rare_classes
from abnn.triage.triage import Triage

LEAST_OUTLIERS = 1000
REPEATED_SHARE = 0.05  # share of the remembered inputs of a fit that may come again by chance
FEW = 20  # inputs of a rare class below which its stated probabilities may be far off
PROBES = 8  # good inputs that are also scored alone, to see how far rounding depends on the batch
Pair = tuple[float, float]


def calibrate(
    model: Any,
    loader: Iterable[Any],
    config: TriageConfig = TriageConfig(),
    outliers: Any = DEFAULT,
    progress: bool = True,
) -> Triage:
    """Return thresholds from held-out good data, on which the model was not fitted; they become ``model.triage``.

    ``notice`` is the conformal quantile of the good scores. ``reject`` is where outliers with destroyed content
    (severity above one half) separate best from good data and mild outliers. It is never below the conformal quantile
    for ``rejected``. Both are raised by the resolution of the scores, see :func:`abnn.triage.thresholds.lift`. Too few
    inputs for ``noticed`` are an error. Too few for ``rejected`` give a warning and a weaker promise.

    loader    yields (x, y) every time it is iterated; it is read more than once
    outliers  are made from the good data, within its range unless the generator has a range of its own; or a data set
              of real ones
    """
    data = gather(model, loader, config, outliers, progress)
    usual = getattr(model, "score", None)
    if config.score is None and isinstance(usual, str) and data.score != usual:
        actual = f"a model that was not fitted, whose score is {data.score!r} and not {usual!r}"
        fix = "Call abnn.fit(model, train_loader) first; epochs=0 learns the score alone, in seconds."
        warnings.warn(explain("model", actual, "a fitted model", fix), AbnnWarning, stacklevel=2)
    model.triage = choose(data, config)
    return model.triage


@dataclass(frozen=True)
class CalibrationData:
    """All that is needed to choose thresholds.

    good, predicted, labels  of each held-out input: its score, predicted class, and label
    log_probs                of each held-out input: ln of its averaged prediction, [N, K]
    mild                     scores of outliers with severity up to one half
    severe                   scores of outliers with severity above one half
    classes                  how many the model has
    score, draws, seed, drawn, views, temperature, intervals   of the predictions, see :class:`Triage`
    class_names              for messages; None: numbers
    rounding                 the largest difference between the scores of some inputs alone and in their batch
    distribution             what predictions consist of. If not "classes", ``predicted`` is 0, and ``labels`` is 0 for
                             right predictions and 1 for wrong ones
    """

    good: np.ndarray
    predicted: np.ndarray
    labels: np.ndarray
    log_probs: np.ndarray
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
    distribution: str = "classes"
    temperature: float = 1.0
    intervals: Intervals | None = None


def gather(
    model: Any,
    loader: Iterable[Any],
    config: TriageConfig = TriageConfig(),
    outliers: Any = DEFAULT,
    progress: bool = False,
) -> CalibrationData:
    """Return scores of good inputs and of outliers. Memory holds one batch, and the predictions of all good inputs.

    ``loader`` is read once for good inputs. Then it is read as often as ``LEAST_OUTLIERS`` outliers take, at least
    once. So many are needed because the best split is flat: with a few hundred, chance decides where in the flat part
    it lies.
    """
    if not (hasattr(model, "predict") and hasattr(model, "input_shape")):
        accepted = "a model that abnn.attach() returned, or another with its predict()"
        fix = "Attach first, or calibrate the network as it is: abnn.predict.Plain(network, x[:1])."
        raise InputError(explain("model", type(model).__name__, accepted, fix))
    if isinstance(loader, Iterator):
        accepted = "a DataLoader or a list of (x, y) batches"
        raise InputError(explain("loader", "an iterator, which can be read once", accepted))
    if outliers is None:
        raise InputError(explain("outliers", "None", "some, for the threshold of reject", "Leave it out."))

    draws = usual_draws(model) if config.draws is None else config.draws

    def predict(x: Any) -> tuple[Any, np.ndarray]:
        prediction = model.predict(x, draws=draws, seed=config.seed)
        scores = prediction.score_by(config.score or prediction.default).detach().cpu().numpy()
        if not np.isfinite(scores).all():
            raise InputError(explain("model", "scores that are not finite", "finite scores", "Check its weights."))
        return prediction, scores

    def batches() -> Iterator[tuple[Any, Tensor]]:
        for batch in loader:
            yield check_batch(model, batch)
            bar.advance(task)

    learnt_from: frozenset[int] = getattr(model, "learnt_from", frozenset())
    repeated: set[int] = set()  # hashes of inputs of the fit that are here, too
    rows: list[tuple[np.ndarray, ...]] = []
    other_predictions: list[tuple[Prediction, Tensor]] = []  # of other distributions than classes, with targets
    facts: dict[str, Any] = {"classes": model.classes, "draws": draws, "seed": config.seed}
    facts["class_names"] = (getattr(model, "extra", None) or {}).get("class_names")

    def good_inputs() -> Iterator[Any]:
        for x, y in batches():
            prediction, scores = predict(x)
            if not rows:
                alone = np.concatenate([predict(each)[1] for each in x[:PROBES].split(1)])
                facts["score"] = config.score or prediction.default
                least = thresholds.LEARNT if facts["score"] == "combined" else 0.0
                facts["rounding"] = max(least, float(np.abs(alone - scores[:PROBES]).max()))
                facts.update(drawn=len(prediction.samples), views=prediction.views)
            if learnt_from:
                repeated.update(learnt_from.intersection(row_hashes(main_input(x))))
            if prediction.distribution == "classes":
                columns = (prediction.label, y, prediction.probs.float().log())
            else:
                # Earlier thresholds and widths must not count, or calibrating again would give others.
                other_predictions.append((replace(prediction.apply(Tensor.cpu), triage=None), y.cpu()))
                columns = (nothing := torch.zeros(len(y), dtype=torch.int64), nothing, nothing)
            rows.append((scores, *(column.cpu().numpy() for column in columns)))
            yield x
        if not rows:
            raise InputError(explain("loader", "a loader without batches", "held-out (x, y) batches"))

    with progress_bar(disable=not progress) as bar:
        length = len(loader) if isinstance(loader, Sized) else None
        task = bar.add_task("calibrating", total=length, status="scores of good inputs")
        generator = make_outliers(outliers)
        limits = measure_range(good_inputs(), generator.layout_for(model))
        maker = generator.prepared_for(model, None, lambda layout: limits)
        if len(repeated) > REPEATED_SHARE * len(learnt_from):
            accepted = "held-out inputs, which it has not seen"
            fix = "Else more good inputs than promised are not accepted. Hold data out before abnn.fit()."
            message = explain("loader", "inputs that the model was fitted on", accepted, fix)
            warnings.warn(message, AbnnWarning, stacklevel=3)  # of calibrate()
        good, predicted, labels, log_probs = (np.concatenate(column) for column in zip(*rows))
        if other_predictions:
            prediction = concatenate([each for each, _ in other_predictions])
            statement, right = learn_statement(prediction, torch.cat([y for _, y in other_predictions]))
            labels = np.where(right, 0, 1)
            facts |= {"distribution": prediction.distribution, **statement}
        rounds = math.ceil(LEAST_OUTLIERS / len(good))
        bar.update(task, total=len(rows) * (1 + rounds), status="scores of outliers")
        random, mild, severe = torch.Generator().manual_seed(config.seed), [], []
        for _ in range(rounds):
            for x, y in batches():
                outlier_batch = maker(x, y, random)
                scores, is_severe = predict(outlier_batch.x)[1], outlier_batch.severity.cpu().numpy() > 0.5
                mild.append(scores[~is_severe])
                severe.append(scores[is_severe])
    return CalibrationData(good, predicted, labels, log_probs, np.concatenate(mild), np.concatenate(severe), **facts)


def usual_draws(model: Any) -> int:
    """Return how many draws predictions of a model have by default; 0: mean weights."""
    return getattr(getattr(model, "network", model), "usual_draws", DRAWS)


def draws_and_seed(model: Any, draws: int | None, seed: int | None) -> tuple[int, int]:
    """Return draws and seed; in place of None, those that the thresholds were calibrated with, or would be."""
    triage = getattr(model, "triage", None)
    usual = (usual_draws(model), 0) if triage is None else (triage.draws, triage.seed)
    return usual[0] if draws is None else draws, usual[1] if seed is None else seed


def choose(data: CalibrationData, config: TriageConfig = TriageConfig()) -> Triage:
    """Return thresholds from gathered scores, for predictions with the same draws, seed and score."""
    if config.per_class and data.distribution != "classes":
        raise InputError(explain("per_class", f"True for a prediction of {data.distribution}", "False"))
    if not len(data.severe):
        fix = "Use 'auto' with more than one input in a batch, or a data set of real outliers."
        raise InputError(explain("outliers", "none with a severity above one half", "some of them", fix))
    good, by_class = data.good, tuple[Pair, ...]()
    if config.costs is not None:
        notice, reject = _by_cost(data, config.costs)
        noticed, rejected = (float((good > limit).mean()) for limit in (notice, reject))
    else:
        split = thresholds.best_split(np.concatenate([good, data.mild]), data.severe)

        def promised(scores: np.ndarray) -> Pair:
            low = thresholds.conformal_quantile(scores, config.noticed, confidence=config.confidence)
            floor = thresholds.conformal_quantile(scores, config.rejected, strict=False, confidence=config.confidence)
            notice, reject = thresholds.lift(np.array([low, max(low, floor, split)]), good, data.rounding)
            return float(notice), float(reject)

        notice, reject = promised(good)
        by_class = _by_class(data, config, promised) if config.per_class else ()
        noticed, rejected = config.noticed, _affordable(data, config)
    fields = ("score", "draws", "seed", "drawn", "views", "temperature", "intervals")
    facts: dict[str, Any] = {name: getattr(data, name) for name in fields}
    if data.distribution == "classes":
        facts["temperature"], facts["offsets"] = choose_scaling(data.log_probs, data.labels)
        _warn_of_rare(data)
    return Triage(
        *(notice, reject, noticed, rejected),
        **facts,
        inputs=len(good),
        calibration=thresholds.quantiles(good),
        confidence=config.confidence,
        by_class=by_class,
        costs=config.costs,
        reference=split_reference(good, data.seed, data.rounding) if len(good) >= LEAST_SCORES else ((), ()),
    )


def _by_cost(data: CalibrationData, costs: Costs) -> Pair:
    """Return the cheapest thresholds for good inputs and severe outliers, raised by the resolution of the scores."""
    right = data.predicted == data.labels
    kinds = np.where(right, COST_KINDS.index("right"), COST_KINDS.index("wrong"))
    kinds = np.concatenate([kinds, np.full(len(data.severe), COST_KINDS.index("far"))])
    scores = np.concatenate([data.good, data.severe])
    limits, least = np.array(thresholds.cheapest_thresholds(scores, kinds, costs)[:2]), float(scores.min())
    *raised_limits, raised_least = thresholds.lift(np.array([*limits, least]), data.good, data.rounding)
    # A limit below all scores stays below them, by as much as the resolution.
    notice, reject = np.where(limits < least, 2 * least - raised_least, raised_limits).tolist()
    return notice, reject


def _affordable(data: CalibrationData, config: TriageConfig) -> float:
    """Return the share of rejected good inputs that can be promised; warn where it is more than was asked for."""
    count = int(np.bincount(data.predicted).min()) if config.per_class else len(data.good)
    needed = thresholds.least_count(config.rejected, config.confidence)
    if count >= needed:
        return config.rejected
    # The threshold is then the largest score, which can promise this share.
    share = 1 / (count + 1) if config.confidence is None else 1 - (1 - config.confidence) ** (1 / count)
    of = " of a class" if config.per_class else ""
    fix = f"The largest score is the threshold, and rejected={share:.2g} is promised instead. Hold out more data."
    message = explain("rejected", f"{config.rejected} with {count} good inputs{of}", f"at least {needed} of them", fix)
    warnings.warn(message, AbnnWarning, stacklevel=4)  # of calibrate()
    return share


def _warn_of_rare(data: CalibrationData) -> None:
    """Warn about rare classes with too few inputs to say how probable they are."""
    names, counts = data.class_names or range(data.classes), np.bincount(data.labels)
    counts = np.pad(counts, (0, data.classes - len(counts)))
    rare = [place for place in rare_classes(data.labels, data.classes) if counts[place] < FEW]
    if rare:
        some = ", ".join(f"{names[place]} ({counts[place]})" for place in rare[:10])
        actual = f"few inputs of rare classes, {some}{', ...' if len(rare) > 10 else ''}, of {len(data.labels)}"
        fix = "The stated probabilities of these classes may be far off. Hold out more data."
        message = explain("loader", actual, f"at least {FEW} of each", fix)
        warnings.warn(message, AbnnWarning, stacklevel=4)  # of calibrate()


def _by_class(data: CalibrationData, config: TriageConfig, promised: Callable[[np.ndarray], Pair]) -> tuple[Pair, ...]:
    """Return thresholds for each predicted class (Mondrian conformal prediction, Vovk et al. 2003).

    All classes share the split from the outliers, because an outlier belongs to no class.
    """
    counts = np.bincount(data.predicted, minlength=data.classes)
    needed = thresholds.least_count(config.noticed, config.confidence)
    names = data.class_names or range(data.classes)
    if small := [f"{name} ({count})" for name, count in zip(names, counts) if count < needed]:
        numbers = f"too few good inputs predicted as {', '.join(small[:10])}{', ...' if len(small) > 10 else ''}"
        accepted = f"at least {needed} for each class to promise {config.noticed:.1%}"
        fix = "Hold out more data, promise less, or calibrate all classes together."
        raise InputError(explain("per_class", numbers, accepted, fix))
    return tuple(promised(data.good[data.predicted == label]) for label in range(data.classes))
