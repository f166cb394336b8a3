"""Read what a model says about inputs: of the data, and of outliers that are made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

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
from abnn.tasks.spread import Fitted
from abnn.train.batches import check_batch
from abnn.train.combine.hidden_words import padded

MADE, FEWEST_ROUNDS, MOST_ROUNDS = 3000, 2, 8  # outliers, and how often they are made of each input
MILD, SEVERE = 0.3, 0.7
Batches = Iterable[tuple[Any, Tensor]]


def first(batches: Batches, most: int) -> Iterator[tuple[Any, Tensor]]:
    """Yield batches until they have so many inputs."""
    count = 0
    for x, y in batches:
        yield x, y
        count += len(y)
        if count >= most:
            return


def checked(model: AttachedNetwork, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    """Yield inputs and labels on the model's device; an error for a batch that does not fit."""
    for batch in batches:
        x, y = check_batch(model, batch)
        yield x.to(model.device), y.to(model.device)


def gather_moments(
    model: AttachedNetwork, run: Pass, batches: Batches, fabric: Any
) -> tuple[list[Moments | WordCounts], Fitted | None, list[list[Tensor]]]:
    """Return the moments of every place's condensed features, or counts of its words, over the batches of all processes.

    Behind them come those of the last features' direction, where it is a part. Beside them comes what learning widths needs of these inputs, and the features of the first of them, batch by batch.
    """
    assert model.closed_form is not None
    classes = model.closed_form.classes
    moments, found = model.closed_form.gatherers(), []
    of_direction = model.combined.direction
    if of_direction is not None:
        moments.append(of_direction.gatherer())
    kept: list[list[Tensor]] = []
    count = 0
    for x, y in batches:
        outputs = run(x)
        noted, last = run.take_features()
        features = [condense(part).cpu() for part in noted]
        one_class = torch.zeros(len(y), dtype=torch.int64)
        for each, part in zip(moments, features):
            each.add(part, y.cpu() if classes else one_class)
        if of_direction is not None:
            assert last is not None
            moments[-1].add(direction(last).cpu(), one_class)
        if count < MADE:
            kept.append(features)
        count += len(y)
        if model.task.spread is not None:
            said = model.evidence(outputs, last, outputs.new_zeros(len(x), 0))
            found.append((said.plain, said.attached, last, y))
    plain, attached, lasts, targets = zip(*found) if found else ((), (), (), ())
    fitted = None
    if found:
        last = None if lasts[0] is None else torch.cat(lasts)
        fitted = Fitted(torch.cat(plain), torch.cat(attached), last, torch.cat(targets))
    if fabric.world_size == 1:
        return moments, fitted, kept
    total, *others = [fabric.broadcast(moments, src=rank) for rank in range(fabric.world_size)]
    for process in others:  # everywhere in the same order, so that all have the same bits
        for each, other in zip(total, process):
            each.join(other)
    return total, fitted, kept


def learn_witness(
    model: AttachedNetwork,
    run: Pass,
    ordinary: list[list[Tensor]],
    read: Callable[[], Batches],
    outliers: Outliers | None,
    generator: torch.Generator,
) -> None:
    """Teach the witness from features of ordinary inputs and of outliers that are made of them; without outliers it says nothing.

    ordinary  condensed features of some inputs, batch by batch
    read      returns batches of inputs to make outliers of, as often as it is called
    """
    assert model.closed_form is not None
    closed_form = model.closed_form

    def seen(features: Sequence[Tensor]) -> Tensor:
        white = closed_form.whiten([part.to(model.device) for part in features])
        return cut(white).transpose(0, 1).flatten(1).cpu()

    kinds: list[list[Tensor]] = [[seen(each) for each in ordinary], [], []]
    made = 0
    for _ in range(0 if outliers is None else MOST_ROUNDS):
        for x, y in first(read(), MADE - made):
            assert outliers is not None
            batch = outliers(x, y, generator)
            run(batch.x)
            white, severity = seen([condense(part) for part in run.take_features()[0]]), batch.severity.cpu()
            kinds[1].append(white[severity <= MILD])
            kinds[2].append(white[severity >= SEVERE])
            made += len(y)
        if made >= MADE:
            break
    closed_form.witness.learn([torch.cat(each) if each else torch.zeros(0, 0) for each in kinds])


def gather_evidence(model: AttachedNetwork, run: Pass, batches: Batches) -> tuple[Evidence, list[Any], list[Tensor]]:
    """Return what the model says about inputs, with these and their labels."""
    found, inputs, labels = [], [], []
    for x, y in batches:
        found.append(model.gather(run, run(x)))
        inputs.append(x)
        labels.append(y)
    return join(found), inputs, labels


PER_INPUT = ("plain", "attached", "last", "variances", "kinds", "classes")
"""The fields of evidence that have a row for each input; the others belong to the network."""


def join(found: list[Evidence]) -> Evidence:
    """Return the evidence of all inputs of several batches."""
    parts = {name: [getattr(each, name) for each in found] for name in PER_INPUT}
    joined = {name: torch.cat(rows) for name, rows in parts.items() if rows[0] is not None}
    words = None if found[0].words is None else padded([each.words for each in found if each.words is not None])
    return found[0]._replace(**joined, words=words)


def pick(evidence: Evidence, rows: Tensor) -> Evidence:
    """Return the evidence of some inputs."""
    values = {name: getattr(evidence, name) for name in (*PER_INPUT, "words")}
    return evidence._replace(**{name: value[rows] for name, value in values.items() if value is not None})


Made = tuple[Evidence, Tensor]
"""Evidence of outliers, and the labels of the inputs that they were made of."""


def make(
    model: AttachedNetwork,
    run: Pass,
    source: list[Any],
    labels: list[Tensor],
    outliers: Outliers | None,
    generator: torch.Generator,
) -> tuple[Made | None, Made | None]:
    """Return changed and destroyed inputs that are made of others; None where there are none of a kind."""
    if outliers is None:
        return None, None
    count = sum(map(len, source))
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, math.ceil(MADE / count)))
    found, severities, own = [], [], []
    for _ in range(rounds):
        for x, y in zip(source, labels):
            batch = outliers(x, y, generator)
            found.append(model.gather(run, run(batch.x)))
            severities.append(batch.severity)
            own.append(y)
    evidence, severity, label = join(found), torch.cat(severities), torch.cat(own)

    def part(chosen: Tensor) -> Made | None:
        rows = chosen.to(label.device).nonzero()[:, 0]
        return (pick(evidence, rows), label[rows]) if len(rows) else None

    return part(severity <= MILD), part(severity >= SEVERE)
