"""Gather what a model says about inputs: about the data, and about outliers that are made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from abnn.bayes.gaussians import Moments
from abnn.bayes.witness import cut
from abnn.bayes.words import WordCounts
from abnn.model.evidence import Evidence
from abnn.model.features import condense, direction
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.outliers import Outliers
from abnn.predict.inputs import check_channels
from abnn.tasks.spread import TrainingOutputs
from abnn.train.batches import check_batch
from abnn.train.combine.hidden_words import padded

OUTLIERS = 3000  # to make, where the rounds below allow it
FEWEST_ROUNDS, MOST_ROUNDS = 2, 8  # how often outliers are made of each input
MILD, SEVERE = 0.3, 0.7  # the largest severity of a changed outlier, the smallest of a destroyed one
Batches = Iterable[tuple[Any, Tensor]]


def take(batches: Batches, inputs: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield batches until they have this many inputs."""
    count = 0
    for x, y in batches:
        yield x, y
        count += len(y)
        if count >= inputs:
            return


def check_batches(model: AttachedNetwork, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels on the model's device. A batch that does not fit the model is an error."""
    for batch in batches:
        x, y = check_batch(model, batch)
        check_channels(model, x)
        yield x.to(model.device), y.to(model.device)


def gather_moments(
    model: AttachedNetwork, run: Pass, batches: Batches, fabric: Any
) -> tuple[list[Moments | WordCounts], TrainingOutputs | None, list[list[Tensor]]]:
    """Return three things about the batches of all processes:

    * for every place, the moments of its condensed features, or the counts of its words. Where the direction of the
      last features is a part, its moments come last
    * what learning widths needs of these inputs; None: the task has no widths. Of this process alone
    * the condensed features of the first inputs, batch by batch. Of this process alone
    """
    assert model.closed_form is not None
    classes = model.closed_form.classes
    moments = model.closed_form.gatherers()
    direction_part = model.combined.direction
    if direction_part is not None:
        moments.append(direction_part.gatherer())
    first_features: list[list[Tensor]] = []
    rows: list[tuple[Tensor, Tensor, Tensor | None, Tensor]] = []  # outputs, last features and targets
    count = 0
    for x, y in batches:
        outputs = run(x)
        place_features, last = run.take_features()
        features = [condense(part).cpu() for part in place_features]
        one_class = torch.zeros(len(y), dtype=torch.int64)
        for gatherer, part in zip(moments, features):
            gatherer.add(part, y.cpu() if classes else one_class)
        if direction_part is not None:
            assert last is not None
            moments[-1].add(direction(last).cpu(), one_class)
        if count < OUTLIERS:
            first_features.append(features)
        count += len(y)
        if model.task.spread is not None:
            evidence = model.evidence(outputs, last, outputs.new_zeros(len(x), 0))
            rows.append((evidence.plain, evidence.attached, last, y))
    training = None
    if rows:
        plain, attached, lasts, targets = zip(*rows)
        last = None if lasts[0] is None else torch.cat(lasts)
        training = TrainingOutputs(torch.cat(plain), torch.cat(attached), last, torch.cat(targets))
    if fabric.world_size == 1:
        return moments, training, first_features
    total, *others = [fabric.broadcast(moments, src=rank) for rank in range(fabric.world_size)]
    for process in others:  # everywhere in the same order, so that all have the same bits
        for gatherer, other in zip(total, process):
            gatherer.join(other)
    return total, training, first_features


def learn_witness(
    model: AttachedNetwork,
    run: Pass,
    ordinary: list[list[Tensor]],
    read: Callable[[], Batches],
    outliers: Outliers | None,
    generator: torch.Generator,
) -> None:
    """Teach the witness from features of ordinary inputs and of outliers made of them. Without outliers it says
    nothing.

    ordinary  condensed features of some inputs, batch by batch
    read      returns batches of inputs to make outliers of, as often as it is called
    """
    assert model.closed_form is not None
    closed_form = model.closed_form

    def whiten(features: Sequence[Tensor]) -> Tensor:
        white = closed_form.whiten([part.to(model.device) for part in features])
        return cut(white).transpose(0, 1).flatten(1).cpu()

    changed: list[Tensor] = []
    destroyed: list[Tensor] = []
    count = 0
    for _ in range(0 if outliers is None else MOST_ROUNDS):
        for x, y in take(read(), OUTLIERS - count):
            assert outliers is not None
            batch = outliers(x, y, generator)
            run(batch.x)
            white, severity = whiten([condense(part) for part in run.take_features()[0]]), batch.severity.cpu()
            changed.append(white[severity <= MILD])
            destroyed.append(white[severity >= SEVERE])
            count += len(y)
        if count >= OUTLIERS:
            break
    kinds = [[whiten(features) for features in ordinary], changed, destroyed]
    closed_form.witness.learn([torch.cat(kind) if kind else torch.zeros(0, 0) for kind in kinds])


def gather_evidence(model: AttachedNetwork, run: Pass, batches: Batches) -> tuple[Evidence, list[Any], list[Tensor]]:
    """Return what the model says about all inputs, and the inputs and their labels, batch by batch."""
    evidence, inputs, labels = [], [], []
    for x, y in batches:
        evidence.append(model.gather(run, run(x)))
        inputs.append(x)
        labels.append(y)
    return _join(evidence), inputs, labels


PER_INPUT = ("plain", "attached", "last", "variances", "kinds", "classes")
"""The fields of evidence with one row for each input, words aside. The other fields belong to the network."""


def _join(batches: list[Evidence]) -> Evidence:
    """Return the evidence of all inputs of several batches."""
    parts = {name: [getattr(batch, name) for batch in batches] for name in PER_INPUT}
    joint = {name: torch.cat(rows) for name, rows in parts.items() if rows[0] is not None}
    words = None
    if batches[0].words is not None:
        words = padded([batch.words for batch in batches if batch.words is not None])
    return batches[0]._replace(**joint, words=words)


def _select(evidence: Evidence, rows: Tensor) -> Evidence:
    """Return the evidence of some inputs, by their numbers."""
    values = {name: getattr(evidence, name) for name in (*PER_INPUT, "words")}
    return evidence._replace(**{name: value[rows] for name, value in values.items() if value is not None})


class LabelledOutliers(NamedTuple):
    """Evidence of outliers, and the labels of the inputs that they were made of."""

    evidence: Evidence
    labels: Tensor


def gather_outliers(
    model: AttachedNetwork,
    run: Pass,
    inputs: list[Any],
    labels: list[Tensor],
    outliers: Outliers | None,
    generator: torch.Generator,
) -> tuple[LabelledOutliers | None, LabelledOutliers | None]:
    """Return changed and destroyed outliers, made of inputs that come batch by batch; None for a kind without any."""
    if outliers is None:
        return None, None
    count = sum(map(len, inputs))
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, math.ceil(OUTLIERS / count)))
    batches, severities, outlier_labels = [], [], []
    for _ in range(rounds):
        for x, y in zip(inputs, labels):
            batch = outliers(x, y, generator)
            batches.append(model.gather(run, run(batch.x)))
            severities.append(batch.severity)
            outlier_labels.append(y)
    evidence, severity, label = _join(batches), torch.cat(severities), torch.cat(outlier_labels)

    def subset(mask: Tensor) -> LabelledOutliers | None:
        rows = mask.to(label.device).nonzero()[:, 0]
        return LabelledOutliers(_select(evidence, rows), label[rows]) if len(rows) else None

    return subset(severity <= MILD), subset(severity >= SEVERE)
