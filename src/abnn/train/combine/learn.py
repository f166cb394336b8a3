"""Learn the combined score: from inputs that the attachments have not seen, and outliers made of them."""

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
    Made,
    checked,
    first,
    gather_evidence,
    gather_moments,
    learn_witness,
    make,
)
from abnn.train.combine.hidden_words import HiddenWords
from abnn.train.combine.members import Seen, choose_anchor, enough, fit_members, groups_of, seen_before, unit_of
from abnn.train.combine.parts import ReadingPass
from abnn.train.combine.trust import learn_trust

MOMENTS, MOST_WITHOUT = 10_000, 2000  # inputs of the closed form over all processes, at most; where nothing is held out
SMALLEST = 1e-2  # spread of what a member says: where all say the same, the rest is rounding
CLIPPED = 0.95  # quantile of the last features at which they are clipped
READABLE = 0.95  # quantile of how destroyed changed inputs look, up to which that counts nothing by itself


def learn_score(
    model: AttachedNetwork,
    read: Callable[[], Batches],
    held_out: Iterable[Any] | None,
    outliers: Outliers | None,
    fabric: Any,
    seed: int,
) -> None:
    """Set the closed form, its witness and the combined score of a model.

    Every process learns from all held-out data. What the first one has learnt counts: where nothing is held out, each sees a share.

    read      returns batches of the data that the attachments were fitted to, as often as it is called; closed form and
              witness learn from them
    held_out  over other data; None: the same, and no witness
    """
    combined = model.combined
    if combined is None or model.closed_form is None:
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        run = ReadingPass(model)
        alone = held_out is None
        some: Batches = first(read(), (MOST_WITHOUT if alone else MOMENTS) // fabric.world_size)
        if alone:  # else read one by one: so many images need not fit into memory
            some = held_out = list(some)
        moments, fitted, features = gather_moments(model, run, some, fabric)
        if combined.direction is not None:
            *moments, of_direction = moments
            combined.direction.set(of_direction)
        model.closed_form.set(moments)
        # Of inputs that it has learnt from, a witness is too sure: without others it says nothing.
        learn_witness(model, run, features, read, None if alone else outliers, generator)
        if fabric.world_size > 1:
            _broadcast(model.closed_form.witness, fabric)
        assert held_out is not None
        ordinary, source, labels = gather_evidence(model, run, checked(model, held_out))
        targets = torch.cat(labels)
        _set_usual(combined, ordinary)
        changed, destroyed = make(model, run, source, labels, outliers, generator)
        if combined.widths is not None:
            outliers_found = [] if destroyed is None else [destroyed[0]]
            inputs = moments[-1].inputs
            combined.widths.learn(fitted, ordinary, targets, outliers_found, model.closed_form.sizes, inputs)
        tabular = source[0].ndim == 2 and source[0].is_floating_point()
        _set_bounds(combined, ordinary, changed, tabular)
        hide = HiddenWords(model.closed_form.words, moments[0] if isinstance(moments[0], WordCounts) else None)
        groups = groups_of(model, Seen(ordinary, targets, changed, destroyed, hide), generator)
        raw = combined.raw_parts(ordinary)
        combined.centre.copy_(raw.median(0).values)
        combined.unit.copy_(unit_of(raw))
        known = seen_before(combined, groups)
        # Where nothing is held out, directions are those that their own covariance was learnt from.
        new = 0.0 if alone else (1 - known) * enough(len(targets))
        _set_readable(model, raw, changed, tabular, new)
        trust, familiar = learn_trust(model, ordinary, targets, changed, known)
        combined.trust.fill_(trust)
        combined.familiar.fill_(familiar)
    fit_members(combined, groups, known, len(targets), generator)
    with torch.no_grad():
        said = combined.members(combined.in_units(raw))
        combined.mean.copy_(said.mean(1, keepdim=True))
        combined.spread.copy_(said.std(1, correction=0, keepdim=True).clamp_min(SMALLEST))
        combined.anchor.copy_(choose_anchor(combined, groups, known))
        if fabric.world_size > 1:
            _broadcast(combined, fabric)
        combined.fitted.fill_(True)


def _broadcast(learnt: torch.nn.Module, fabric: Any) -> None:
    """Let every process have what the first one has learnt."""
    for buffer in learnt.buffers():
        buffer.copy_(fabric.broadcast(buffer))


def _set_usual(combined: Any, ordinary: Evidence) -> None:
    combined.usual_variances.copy_(ordinary.variances.median(0).values)
    if ordinary.last is not None:
        combined.usual_last.copy_(ordinary.last.mean(0))
        values = ordinary.last.flatten()
        values = values[:: max(1, len(values) // 200_000)].sort().values
        combined.ceiling.copy_(values[int(CLIPPED * (len(values) - 1))])


def _set_bounds(combined: Any, ordinary: Evidence, changed: Made | None, tabular: bool) -> None:
    """Where T begins: for tables at the 95 % quantile, else at twice the largest variance."""
    variances = ordinary.variances
    if tabular:
        combined.bounds.copy_(variances.sort(0).values[int(0.95 * (len(variances) - 1))])
        return
    largest = variances.amax(0)
    if changed is not None:
        largest = largest.maximum(changed[0].variances.amax(0))
    combined.bounds.copy_(largest + math.log(2))


def _set_readable(model: AttachedNetwork, ordinary: Tensor, changed: Made | None, tabular: bool, new: float) -> None:
    """Where D begins: up to there lie 95 % of ordinary inputs, and of those that are changed but can be read.

    They can be read by a person, for how destroyed an input looks, and by the network, for the direction of its features. That begins the later
    the less ``new`` held-out data are to the network, as far as there are enough to tell, and never where they are not: what is learnt finds
    far inputs there. Of tables it also counts how far odds are above the usual. Odds below it excuse nothing: far away a network of ReLUs is
    sure.
    """
    combined, task = model.combined, model.task
    combined.readable.fill_(NEVER)
    by_person = [combined.in_units(ordinary)]
    by_network = by_person[:]
    if changed is not None:
        by_person.append(combined.in_units(combined.raw_parts(changed[0])))
    if changed is not None and combined.direction is not None:
        none = torch.zeros(model.classes, dtype=torch.bool, device=ordinary.device)
        by_network.append(by_person[1][task.right_inputs(*changed, none)])
    for name, groups, share in (
        (DESTROYED, by_person, READABLE),
        (DIRECTION, by_network, 1 - new * (1 - READABLE)),
    ):
        if name in combined.names and share < 1:
            place = combined.names.index(name)
            values = [group[:, place].sort().values for group in groups if len(group)]
            combined.readable[place] = max(float(each[int(share * (len(each) - 1))]) for each in values)
    if tabular and "odds" in combined.names:
        combined.readable[combined.names.index("odds")] = 0.0
