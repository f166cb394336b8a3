"""From held-out data to a Triage: gather scores once, then choose thresholds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain, whole_seed
from abnn.model.attached import check_draws
from abnn.outliers import DEFAULT, make_outliers, measure_range
from abnn.predict.prediction import Plain
from abnn.triage.drift import LEAST_SCORES, split_reference
from abnn.triage.temperature import choose_temperature
from abnn.triage.thresholds import (
    KINDS,
    Costs,
    best_split,
    cheapest_thresholds,
    check_promise,
    conformal_quantile,
    least_count,
)
from abnn.triage.verdicts import Triage

if TYPE_CHECKING:
    from abnn.model.attached import Attached

LEAST_OUTLIERS = 1000


@dataclass(frozen=True)
class Gathered:
    """Everything that choosing thresholds needs.

    good, predicted, right   of each held-out input: its score, predicted class, and whether that is its label
    log_probs, labels        of each held-out input: ln of its averaged prediction [N, K], and its label
    mild, severe             scores of outliers with severity at most, and above, one half
    classes, score, draws, seed   of the model and its predictions
    drawn, views             how many draws the predictions had, whatever was asked for, and views; None: not known
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


def gather(
    model: Attached | Plain,
    loader: Iterable[Any],
    outliers: Any = DEFAULT,
    draws: int = 10,
    seed: int = 0,
    score: str | None = None,
    value_range: tuple[Any, Any] | None = None,
) -> Gathered:
    """Scores of good inputs and of outliers; memory for one batch at a time, and for the predictions of good inputs.

    ``loader`` is read once for good inputs, and then as often as it takes to make ``LEAST_OUTLIERS`` outliers, at least
    once: the best split is flat, and with a few hundred outliers chance decides where in the flat part it lies.
    """
    if not (hasattr(model, "predict") and hasattr(model, "input_shape")):
        accepted = "a model that abnn.attach() returned, or another with its predict()"
        fix = "Attach first, or calibrate the network as it is: abnn.predict.Plain(network, x[:1])."
        raise InputError(explain("model", type(model).__name__, accepted, fix))
    if isinstance(loader, Iterator):
        raise InputError(
            explain("loader", "an iterator, which can be read once", "a DataLoader or a list of (x, y) batches")
        )
    draws, seed = check_draws(draws), whole_seed(seed)
    rows: list[tuple[np.ndarray, ...]] = []
    names = [score] if score is not None else []
    numbers: list[tuple[int, int | None]] = []  # of draws and views

    def first_pass() -> Iterator[Tensor]:
        for x, y in _batches(model, loader):
            prediction = model.predict(x, draws=draws, seed=seed)
            names.append(prediction.default)
            numbers.append((len(prediction.samples), prediction.views))
            predicted, labels = prediction.label.cpu(), y.cpu()
            scores, log_probs = _scores(prediction.score_by(names[0])), prediction.probs.float().log().cpu().numpy()
            rows.append((scores, predicted.numpy(), (predicted == labels).numpy(), log_probs, labels.numpy()))
            yield x

    if outliers is None:
        raise InputError(
            explain("outliers", "None", "some, from which the threshold of reject follows", "Leave it out.")
        )
    chosen = make_outliers(outliers)
    layout = chosen.layout_for(model)
    maker = chosen.with_range(value_range, lambda: measure_range(_checked_first(first_pass()), layout), layout)
    if not rows:
        for _ in _checked_first(first_pass()):
            pass
    generator = torch.Generator().manual_seed(seed)
    mild, severe = [], []
    rounds = math.ceil(LEAST_OUTLIERS / sum(len(scores) for scores, *_ in rows))
    for x, y in itertools.chain.from_iterable(_batches(model, loader) for _ in range(rounds)):
        made = maker(x, y, generator)
        scores = _scores(model.predict(made.x, draws=draws, seed=seed).score_by(names[0]))
        far = made.severity.cpu().numpy() > 0.5
        mild.append(scores[~far])
        severe.append(scores[far])
    good, predicted, right, log_probs, labels = (np.concatenate(parts) for parts in zip(*rows))
    return Gathered(
        good=good,
        predicted=predicted,
        right=right,
        log_probs=log_probs,
        labels=labels,
        mild=np.concatenate(mild),
        severe=np.concatenate(severe),
        classes=model.classes,
        score=names[0],
        draws=draws,
        seed=seed,
        drawn=numbers[0][0],
        views=numbers[0][1],
    )


def choose(
    gathered: Gathered,
    noticed: float = 0.05,
    rejected: float = 0.01,
    confidence: float | None = None,
    per_class: bool = False,
    costs: Costs | None = None,
    class_names: Sequence[str] | None = None,
) -> Triage:
    """Thresholds from gathered scores; the arguments are those of :meth:`Triage.calibrate`."""
    check_choice(noticed, rejected, confidence, per_class, costs)
    if not len(gathered.severe):
        fix = "Use 'auto' with more than one input in a batch, or a data set of real outliers."
        raise InputError(explain("outliers", "none with a severity above one half", "some of them", fix))
    good = gathered.good
    by_class: tuple[tuple[float, float], ...] = ()
    if costs is not None:
        notice, reject = _by_cost(gathered, costs)
        noticed, rejected = (float((good > limit).mean()) for limit in (notice, reject))
    else:
        split = best_split(np.concatenate([good, gathered.mild]), gathered.severe)
        notice, reject = _promised(good, noticed, rejected, confidence, split)
        if per_class:
            by_class = _by_class(gathered, noticed, rejected, confidence, split, class_names)
        smallest = int(np.bincount(gathered.predicted).min()) if per_class else len(good)
        if smallest < least_count(rejected, confidence):
            # The largest score is the threshold then, and this is what it can promise.
            rejected = 1 / (smallest + 1) if confidence is None else 1 - (1 - confidence) ** (1 / smallest)
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
        confidence=confidence,
        by_class=by_class,
        costs=costs,
        reference=split_reference(good, gathered.seed) if len(good) >= LEAST_SCORES else ((), ()),
        drawn=gathered.drawn,
        views=gathered.views,
        temperature=choose_temperature(gathered.log_probs, gathered.labels),
    )


def check_choice(
    noticed: float, rejected: float, confidence: float | None, per_class: bool, costs: Costs | None
) -> None:
    """Errors about how thresholds are to be chosen, before anything is computed."""
    check_promise("noticed", noticed)
    check_promise("rejected", rejected)
    if confidence is not None:
        check_promise("confidence", confidence)
    if costs is not None and (per_class or confidence is not None):
        raise InputError(explain("costs", "costs together with per_class or confidence", "one or the other"))


def quantiles(scores: np.ndarray) -> tuple[float, ...]:
    """0 %, 1 %, ..., 100 % of the scores, to seven digits."""
    found = np.quantile(scores, np.arange(101) / 100, method="inverted_cdf")
    return tuple(seven_digits(value) for value in found)


def seven_digits(value: float) -> float:
    """A score as quantiles are kept."""
    return float(f"{value:.7g}")


def _promised(
    good: np.ndarray, noticed: float, rejected: float, confidence: float | None, split: float
) -> tuple[float, float]:
    notice = conformal_quantile(good, noticed, confidence=confidence)
    floor = conformal_quantile(good, rejected, strict=False, confidence=confidence)
    return notice, max(notice, floor, split)


def _by_class(
    gathered: Gathered,
    noticed: float,
    rejected: float,
    confidence: float | None,
    split: float,
    class_names: Sequence[str] | None,
) -> tuple[tuple[float, float], ...]:
    """Thresholds within each predicted class (Mondrian conformal prediction, Vovk et al. 2003).

    The split from the outliers is common to all classes: an outlier belongs to none.
    """
    counts = np.bincount(gathered.predicted, minlength=gathered.classes)
    needed = least_count(noticed, confidence)
    if small := [label for label, count in enumerate(counts) if count < needed]:
        names = [str(label) if class_names is None else class_names[label] for label in small]
        listed = ", ".join(f"{name} ({counts[label]})" for name, label in zip(names[:10], small))
        raise InputError(
            explain(
                "per_class",
                f"too few good inputs predicted as {listed}{', ...' if len(small) > 10 else ''}",
                f"at least {needed} for each class to promise {noticed:.1%}",
                "Hold out more data, promise less, or calibrate all classes together.",
            )
        )
    return tuple(
        _promised(gathered.good[gathered.predicted == label], noticed, rejected, confidence, split)
        for label in range(gathered.classes)
    )


def _by_cost(gathered: Gathered, costs: Costs) -> tuple[float, float]:
    scores = np.concatenate([gathered.good, gathered.severe])
    near = np.where(gathered.right, KINDS.index("right"), KINDS.index("wrong"))
    kinds = np.concatenate([near, np.full(len(gathered.severe), KINDS.index("far"))])
    notice, reject, _ = cheapest_thresholds(scores, kinds, costs)
    return notice, reject


def _batches(model: Attached | Plain, loader: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    from abnn.train.batches import check_batch

    return (check_batch(model, batch) for batch in loader)


def _checked_first(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        raise InputError(explain("loader", "a loader without batches", "held-out (x, y) batches"))


def _scores(scores: Tensor) -> np.ndarray:
    values = scores.detach().cpu().numpy()
    if not np.isfinite(values).all():
        raise InputError(explain("model", "scores that are not finite", "finite scores", "Check its weights."))
    return values
