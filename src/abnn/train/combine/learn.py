"""Learn the combined score, from inputs that the attachments have not seen and from outliers made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.words import WordCounts
from abnn.model.evidence import Evidence
from abnn.model.network import AttachedNetwork
from abnn.outliers import Outliers
from abnn.scores.combined import DESTROYED, DIRECTION, NEVER
from abnn.train.combine.gather import (
    Batches,
    LabelledOutliers,
    check_batches,
    gather_evidence,
    gather_moments,
    gather_outliers,
    learn_witness,
    take,
)
from abnn.train.combine.hidden_words import HiddenWords
from abnn.train.combine.members import (
    ENOUGH_INPUTS,
    HeldOut,
    choose_anchor,
    fit_members,
    gather_groups,
    training_overlap,
    unit_of,
)
from abnn.train.combine.parts import ReadingPass
from abnn.train.combine.trust import learn_trust

MOMENTS = 10_000  # inputs that the closed form learns from, at most, over all processes
MOST_WITHOUT = 2000  # the same where nothing is held out
SMALLEST = 1e-2  # least spread of a member's scores: where it gives all inputs the same score, the rest is rounding
CLIPPED = 0.95  # quantile of the last features at which they are clipped
READABLE = 0.95  # quantile of "looks destroyed" of changed inputs, up to which D is zero
USUAL_VALUES = 200_000  # of the last features, from which that quantile is taken, about


def learn_score(
    model: AttachedNetwork,
    read: Callable[[], Batches],
    held_out: Iterable[Any] | None,
    outliers: Outliers | None,
    fabric: Any,
    seed: int,
) -> None:
    """Set the closed form, its witness and the combined score of a model.

    Every process learns from all held-out data. All processes then take what the first one has learnt, because where
    nothing is held out, each sees only a share of the data.

    read      returns batches of the data that the attachments were fitted to, as often as it is called; closed form and
              witness learn from them
    held_out  batches of other data; None: the score learns from the same data, and the witness says nothing
    """
    combined = model.combined
    if combined is None or model.closed_form is None:
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        run = ReadingPass(model)
        nothing_held_out = held_out is None
        most = MOST_WITHOUT if nothing_held_out else MOMENTS
        batches: Batches = take(read(), most // fabric.world_size)
        if nothing_held_out:  # else they are read one by one: so many images need not fit into memory
            batches = held_out = list(batches)
        moments, training, features = gather_moments(model, run, batches, fabric)
        if combined.direction is not None:
            *moments, direction_moments = moments
            combined.direction.set(direction_moments)
        model.closed_form.set(moments)
        # A witness is too sure of inputs that it has learnt from: with no others it says nothing.
        learn_witness(model, run, features, read, None if nothing_held_out else outliers, generator)
        if fabric.world_size > 1:
            _broadcast(model.closed_form.witness, fabric)
        assert held_out is not None
        ordinary, inputs, label_batches = gather_evidence(model, run, check_batches(model, held_out))
        labels = torch.cat(label_batches)
        _set_usual(combined, ordinary)
        changed, destroyed = gather_outliers(model, run, inputs, label_batches, outliers, generator)
        if combined.widths is not None:
            destroyed_evidence = [] if destroyed is None else [destroyed.evidence]
            count = moments[-1].inputs
            combined.widths.learn(training, ordinary, labels, destroyed_evidence, model.closed_form.sizes, count)
        tabular = inputs[0].ndim == 2 and inputs[0].is_floating_point()
        _set_bounds(combined, ordinary, changed, tabular)
        hide = HiddenWords(model.closed_form.words, moments[0] if isinstance(moments[0], WordCounts) else None)
        groups = gather_groups(model, HeldOut(ordinary, labels, changed, destroyed, hide), generator)
        raw = combined.raw_parts(ordinary)
        combined.centre.copy_(raw.median(0).values)
        combined.unit.copy_(unit_of(raw))
        overlap = training_overlap(combined, groups)
        # Where nothing is held out, the covariance of directions was learnt from these very inputs: directions do not
        # count.
        novelty = 0.0 if nothing_held_out else (1 - overlap) * ENOUGH_INPUTS.share(len(labels))
        _set_readable(model, raw, changed, tabular, novelty)
        trust, familiar = learn_trust(model, ordinary, labels, changed, overlap)
        combined.trust.fill_(trust)
        combined.familiar.fill_(familiar)
    fit_members(combined, groups, overlap, len(labels), generator)
    with torch.no_grad():
        scores = combined.members(combined.in_units(raw))
        combined.mean.copy_(scores.mean(1, keepdim=True))
        combined.spread.copy_(scores.std(1, correction=0, keepdim=True).clamp_min(SMALLEST))
        combined.anchor.copy_(choose_anchor(combined, groups, overlap))
        if fabric.world_size > 1:
            _broadcast(combined, fabric)
        combined.fitted.fill_(True)


def _broadcast(module: torch.nn.Module, fabric: Any) -> None:
    """Give every process the buffers of the first one."""
    for buffer in module.buffers():
        buffer.copy_(fabric.broadcast(buffer))


def _set_usual(combined: Any, ordinary: Evidence) -> None:
    """Set the usual variances and last features, and the value at which last features are clipped."""
    combined.usual_variances.copy_(ordinary.variances.median(0).values)
    if ordinary.last is not None:
        combined.usual_last.copy_(ordinary.last.mean(0))
        values = ordinary.last.flatten()
        values = values[:: max(1, len(values) // USUAL_VALUES)].sort().values
        combined.ceiling.copy_(values[int(CLIPPED * (len(values) - 1))])


def _set_bounds(combined: Any, ordinary: Evidence, changed: LabelledOutliers | None, tabular: bool) -> None:
    """Set where T begins: for tables at the 95 % quantile of each variance, else at twice the largest one."""
    variances = ordinary.variances
    if tabular:
        combined.bounds.copy_(variances.sort(0).values[int(0.95 * (len(variances) - 1))])
        return
    largest = variances.amax(0)
    if changed is not None:
        largest = largest.maximum(changed.evidence.variances.amax(0))
    combined.bounds.copy_(largest + math.log(2))


def _set_readable(
    model: AttachedNetwork, ordinary: Tensor, changed: LabelledOutliers | None, tabular: bool, novelty: float
) -> None:
    """Set where D begins: 95 % of ordinary inputs lie below, and 95 % of the changed ones that can still be read.

    For "looks destroyed", a person has to be able to read them: all changed inputs count. For the direction of
    features, the network has to: only those that it predicts right count.

    novelty  in [0, 1], how sure it is that held-out data are new to the network, less where they are few. The smaller
             it is, the later the term of directions begins; at 0 it never does, because the members find far inputs
             there

    Of tables, D also has the odds above the usual. Odds below it excuse nothing: far away a network of ReLUs is sure.
    """
    combined, task = model.combined, model.task
    combined.readable.fill_(NEVER)
    person = [combined.in_units(ordinary)]  # the parts of what a person can read
    network = person[:]
    if changed is not None:
        person.append(combined.in_units(combined.raw_parts(changed.evidence)))
    if changed is not None and combined.direction is not None:
        nothing = torch.zeros(model.classes, dtype=torch.bool, device=ordinary.device)
        network.append(person[1][task.right_inputs(changed.evidence, changed.labels, nothing)])
    for name, groups, share in (
        (DESTROYED, person, READABLE),
        (DIRECTION, network, 1 - novelty * (1 - READABLE)),
    ):
        if name in combined.names and share < 1:
            place = combined.names.index(name)
            columns = [group[:, place].sort().values for group in groups if len(group)]
            combined.readable[place] = max(float(column[int(share * (len(column) - 1))]) for column in columns)
    if tabular and "odds" in combined.names:
        combined.readable[combined.names.index("odds")] = 0.0
