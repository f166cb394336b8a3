"""Learn what counts how much in the combined score: from inputs that the attachments have not seen, and outliers made of them.

Four groups of inputs are told apart: ordinary ones; *changed* ones, outliers of severity at most 0.3; *destroyed* ones, of severity
at least 0.7; and *near* ones, ordinary inputs of classes that are hidden from the network (a random fifth of them, several
times over: their logits are left out). The score is to order pairs of them:

    minimise  sum over pairs  weight * softplus(s(less) - s(more)).

One half of the members learns from one half of the inputs, the other from the other. The energies count beside them, see
:func:`_choose_anchor`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.bayes.gaussians import Moments
from abnn.model.evidence import Evidence
from abnn.model.features import condense
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.outliers import Outliers
from abnn.scores.combined import CUT, MEMBERS, say
from abnn.tasks.spread import Fitted
from abnn.train.batches import check_batch

WEIGHTS = {
    ("ordinary", "near"): 4.0,
    ("ordinary", "destroyed"): 1.0,
    ("changed", "near"): 2.0,
    ("changed", "destroyed"): 1.0,
    ("right", "wrong"): 0.5,
    ("near", "destroyed"): 0.3,
    ("ordinary", "changed"): 0.5,
}
"""How much each pair counts; the first of a pair is to be less uncertain."""
ENERGIES = (["energy"], ["energy", "attached energy"], ["widened energy", "widened attached energy"])
AS_THEY_ARE, WIDENED, TOLERANCE = 0.5, 1.0, 0.01
"""How much energies count beside what was learnt, and what widening may cost in the AUROC of near inputs."""
ROUNDS = 8  # of hidden classes
STEPS, PAIRS, RATE, DECAY, DROPPED = 300, 256, 5e-3, 0.1, 0.2
MADE, FEWEST_ROUNDS, MOST_ROUNDS = 3000, 2, 8  # outliers, and how often they are made of each input
MILD, SEVERE = 0.3, 0.7
MOMENTS, MOST_WITHOUT = 10_000, 2000  # inputs of the closed form over all processes, at most; where nothing is held out
SMALLEST = 1e-2  # spread of what a member says: where all say the same, the rest is rounding
FINEST = 1e-3  # unit of a part, relative to its size: what differs by less is rounding
CLIPPED = 0.95  # quantile of the last features at which they are clipped


def learn_score(
    model: AttachedNetwork,
    batches: Iterable[tuple[Any, Tensor]],
    held_out: Iterable[Any] | None,
    outliers: Outliers | None,
    fabric: Any,
    seed: int,
) -> None:
    """Set the closed form and the combined score of a model.

    Every process learns from all held-out data. What the first one has learnt counts: where nothing is held out, each sees a share.

    batches   over the data that the attachments were fitted to; the closed form is gathered from them
    held_out  over other data; None: the same
    """
    combined = model.combined
    if combined is None or model.closed_form is None:
        return
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        run = Pass(model, noting=True, plain=True)
        if held_out is None:
            some: Iterable[tuple[Any, Tensor]] = list(_first(batches, MOST_WITHOUT // fabric.world_size))
        else:  # read one by one: so many images need not fit into memory
            some = _first(batches, MOMENTS // fabric.world_size)
        moments, fitted = _moments(model, run, some, fabric)
        model.closed_form.set(moments)
        ordinary, source, labels = _evidence(model, run, _checked(model, some if held_out is None else held_out))
        _set_usual(combined, ordinary)
        changed, destroyed = _made(model, run, source, labels, outliers, generator)
        if combined.widths is not None:
            outliers_found = [] if destroyed is None else [destroyed[0]]
            inputs, targets = int(moments[0].counts.sum()), torch.cat(labels)
            combined.widths.learn(fitted, ordinary, targets, outliers_found, model.closed_form.widths, inputs)
        _set_bounds(combined, ordinary, changed, tabular=source[0].ndim == 2 and source[0].is_floating_point())
        groups = _groups(model, ordinary, torch.cat(labels), changed, destroyed, generator)
        raw = combined.raw_parts(ordinary)
        combined.centre.copy_(raw.median(0).values)
        combined.unit.copy_(_unit(raw))
    _fit_members(combined, groups, generator)
    with torch.no_grad():
        said = combined.members(combined.in_units(raw))
        combined.mean.copy_(said.mean(1, keepdim=True))
        combined.spread.copy_(said.std(1, correction=0, keepdim=True).clamp_min(SMALLEST))
        combined.anchor.copy_(_choose_anchor(combined, groups))
        if fabric.world_size > 1:
            for buffer in combined.buffers():
                buffer.copy_(fabric.broadcast(buffer))
        combined.fitted.fill_(True)


def _first(batches: Iterable[tuple[Any, Tensor]], most: int) -> Iterator[tuple[Any, Tensor]]:
    count = 0
    for x, y in batches:
        yield x, y
        count += len(x)
        if count >= most:
            return


def _checked(model: AttachedNetwork, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
    for batch in batches:
        x, y = check_batch(model, batch)
        yield x.to(model.device), y.to(model.device)


def _moments(
    model: AttachedNetwork, run: Pass, batches: Iterable[tuple[Any, Tensor]], fabric: Any
) -> tuple[list[Moments], Fitted | None]:
    """Of the condensed features of every place, over the batches of all processes; and what learning widths needs of these inputs."""
    assert model.closed_form is not None
    classes = model.closed_form.classes
    moments, found = [Moments(classes or 1, width) for width in model.closed_form.widths], []
    for x, y in batches:
        outputs = run(x)
        noted, last = run.take_features()
        for each, part in zip(moments, noted):
            features = condense(part).cpu().double()  # some devices have no float64
            each.add(features, y.cpu() if classes else torch.zeros(len(features), dtype=torch.int64))
        if model.task.spread is not None:
            said = model.evidence(outputs, last, outputs.new_zeros(len(x), 0))
            found.append((said.plain, said.attached, last, y))
    plain, attached, lasts, targets = zip(*found) if found else ((), (), (), ())
    fitted = None
    if found:
        last = None if lasts[0] is None else torch.cat(lasts)
        fitted = Fitted(torch.cat(plain), torch.cat(attached), last, torch.cat(targets))
    if fabric.world_size == 1:
        return moments, fitted
    total, *others = [fabric.broadcast(moments, src=rank) for rank in range(fabric.world_size)]
    for process in others:  # everywhere in the same order, so that all have the same bits
        for each, other in zip(total, process):
            each.join(other)
    return total, fitted


def _evidence(
    model: AttachedNetwork, run: Pass, batches: Iterable[tuple[Any, Tensor]]
) -> tuple[Evidence, list[Any], list[Tensor]]:
    """What the model says about inputs, with these and their labels."""
    found, inputs, labels = [], [], []
    for x, y in batches:
        found.append(model.gather(run, run(x)))
        inputs.append(x)
        labels.append(y)
    return _join(found), inputs, labels


PER_INPUT = ("plain", "attached", "last", "variances", "classes")
"""The fields of evidence that have a row for each input; the others belong to the network."""


def _join(found: list[Evidence]) -> Evidence:
    """Of all inputs of several batches."""
    parts = {name: [getattr(each, name) for each in found] for name in PER_INPUT}
    return found[0]._replace(**{name: torch.cat(rows) for name, rows in parts.items() if rows[0] is not None})


def _pick(evidence: Evidence, rows: Tensor) -> Evidence:
    """Of some inputs."""
    values = {name: getattr(evidence, name) for name in PER_INPUT}
    return evidence._replace(**{name: value[rows] for name, value in values.items() if value is not None})


Made = tuple[Evidence, Tensor, Tensor]
"""Evidence of outliers, the labels of the inputs that they were made of, and the numbers of these."""


def _made(
    model: AttachedNetwork,
    run: Pass,
    source: list[Any],
    labels: list[Tensor],
    outliers: Outliers | None,
    generator: torch.Generator,
) -> tuple[Made | None, Made | None]:
    """Changed and destroyed inputs; None where there are none of a kind."""
    if outliers is None:
        return None, None
    count = sum(map(len, source))
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, math.ceil(MADE / count)))
    found, severities, own, numbers = [], [], [], []
    for _ in range(rounds):
        start = 0
        for x, y in zip(source, labels):
            batch = outliers(x, y, generator)
            found.append(model.gather(run, run(batch.x)))
            severities.append(batch.severity)
            own.append(y)
            numbers.append(torch.arange(start, start + len(x), device=y.device))
            start += len(x)
    evidence, severity, label, number = _join(found), torch.cat(severities), torch.cat(own), torch.cat(numbers)

    def part(chosen: Tensor) -> Made | None:
        rows = chosen.to(label.device).nonzero()[:, 0]
        return (_pick(evidence, rows), label[rows], number[rows]) if len(rows) else None

    return part(severity <= MILD), part(severity >= SEVERE)


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


def _unit(raw: Tensor) -> Tensor:
    """The spread of each part: that of a standard deviation where it is Gaussian; never zero."""
    ordered = raw.sort(0).values
    low, high = (ordered[round(share * (len(raw) - 1))] for share in (0.05, 0.95))
    return ((high - low) / 3.3).clamp_min(FINEST * (1 + raw.abs().amax(0)))


Groups = dict[str, tuple[Tensor, Tensor]]
"""Parts in units of what is usual, and which half of the inputs each row belongs to, 0 or 1."""


def _groups(
    model: AttachedNetwork,
    ordinary: Evidence,
    labels: Tensor,
    changed: Made | None,
    destroyed: Made | None,
    generator: torch.Generator,
) -> Groups:
    """Rows of every kind that occurs, over all rounds of hidden classes; one round that hides none where a task cannot."""
    none = torch.zeros(model.classes, dtype=torch.bool)
    rounds = model.task.hidden_classes(model.classes, ROUNDS, generator) or [none]
    if bool((labels == labels[0]).all()):  # of one class: where that is hidden, nothing is left
        rounds = [none]
    found = [_round(model, ordinary, labels, changed, destroyed, hidden.to(labels.device)) for hidden in rounds]
    return {
        name: (torch.cat([each[name][0] for each in found]), torch.cat([each[name][1] for each in found]))
        for name in found[0]
    }


def _round(
    model: AttachedNetwork,
    ordinary: Evidence,
    labels: Tensor,
    changed: Made | None,
    destroyed: Made | None,
    hidden: Tensor,
) -> Groups:
    """Rows of every kind where some classes are hidden."""
    combined, task = model.combined, model.task
    visible = (~hidden).nonzero()[:, 0] if bool(hidden.any()) else None
    half, near = torch.arange(len(labels), device=labels.device) % 2, task.hidden_inputs(labels, hidden)
    raw = combined.raw_parts(ordinary, visible)
    usual = raw if bool(near.all()) else raw[~near]
    centre, unit = usual.median(0).values, _unit(usual)

    def units(own: Tensor) -> Tensor:
        return ((own - centre) / unit).nan_to_num(nan=CUT)

    x = units(raw)
    right = task.right_inputs(ordinary, labels, hidden)
    kinds = {"ordinary": ~near, "near": near, "right": right & ~near, "wrong": ~right & ~near}
    groups = {name: (x[chosen], half[chosen]) for name, chosen in kinds.items()}
    if changed is not None:
        evidence, own_labels, numbers = changed
        kept = ~task.hidden_inputs(own_labels, hidden)
        groups["changed"] = units(combined.raw_parts(evidence, visible))[kept], numbers[kept] % 2
    if destroyed is not None:
        evidence, _, numbers = destroyed
        groups["destroyed"] = units(combined.raw_parts(evidence, visible)), numbers % 2
    return groups


def _fit_members(combined: Any, groups: Groups, generator: torch.Generator) -> None:
    """Fit the small networks to all pairs that occur; without any, they say nothing."""
    names = ("linear", "inner", "offset", "outer")
    pairs = [(less, more, weight) for (less, more), weight in WEIGHTS.items() if _has_both_halves(groups, less, more)]
    if not pairs:
        for name in names:
            getattr(combined, name).zero_()
        return
    device, parts, hidden = combined.linear.device, combined.linear.shape[1], combined.inner.shape[2]
    values = {}
    for name, scale in zip(names, (0.0, parts**-0.5, 0.3, hidden**-0.5)):
        start = scale * torch.randn(getattr(combined, name).shape, generator=generator)
        values[name] = start.to(device).requires_grad_(True)
    rows = {name: [x[own == half].clamp(-CUT, CUT) for half in (0, 1)] for name, (x, own) in groups.items()}
    optimizer = torch.optim.AdamW(values.values(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def draw(name: str) -> Tensor:
        """[members, pairs, parts]: rows of the half that each member learns from."""
        places = [torch.randint(len(rows[name][m % 2]), (PAIRS,), generator=generator) for m in range(MEMBERS)]
        return torch.stack([rows[name][m % 2][place.to(device)] for m, place in enumerate(places)])

    for _ in range(STEPS):
        shown = (torch.rand(MEMBERS, 1, parts, generator=generator) >= DROPPED).float().to(device)
        loss = torch.zeros((), device=device)
        for less, more, weight in pairs:
            gap = say(draw(less) * shown, **values) - say(draw(more) * shown, **values)
            loss = loss + weight * F.softplus(gap).mean(1).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        for name, value in values.items():
            getattr(combined, name).copy_(value)


def _has_both_halves(groups: Groups, *names: str) -> bool:
    return all(name in groups and {0, 1} <= set(groups[name][1].unique().tolist()) for name in names)


def _choose_anchor(combined: Any, groups: Groups) -> Tensor:
    """How much the energies count beside what was learnt: those with and without attachments, widened where that costs nothing.

    Where the data are few for what the network knows, variances are noise, and near inputs, which lie where ordinary ones do,
    drown in it; elsewhere widened energies are the better ones.
    """
    own, both, widened = (_mean_of(combined, names) for names in ENERGIES)
    if {"ordinary", "near"} <= groups.keys() and len(groups["near"][0]):
        (less, _), (more, _) = groups["ordinary"], groups["near"]
        if auroc(less @ widened, more @ widened) < auroc(less @ own, more @ own) - TOLERANCE:
            return AS_THEY_ARE * both
    return WIDENED * widened


def _mean_of(combined: Any, names: list[str]) -> Tensor:
    """Weights of parts that give the mean of the named ones; a task without them has its first part instead."""
    weights = torch.zeros(len(combined.names), device=combined.centre.device)
    places = [combined.names.index(name) for name in names if name in combined.names] or [0]
    weights[places] = 1 / len(places)
    return weights


def auroc(less: Tensor, more: Tensor) -> float:
    """P(more > less) + P(equal) / 2."""
    ordered, more = less.sort().values, more.contiguous()
    below = torch.searchsorted(ordered, more) + torch.searchsorted(ordered, more, right=True)
    return float(below.double().mean()) / (2 * max(1, len(less)))
