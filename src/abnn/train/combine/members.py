"""The small networks of the combined score, and how much energies count beside them.

Four groups of inputs are told apart: ordinary ones; *changed* ones, outliers of severity at most 0.3; *destroyed* ones, of severity
at least 0.7; and *near* ones, ordinary inputs of classes that are hidden from the network (a random fifth of them, several
times over: their logits are left out). Of ordinary inputs some are *right* and some *wrong*, of changed ones *readable* and *misread*: by
the network's own predictions. The score is to order pairs of them:

    minimise  sum over pairs  weight * softplus(s(less) - s(more)).

Each member sees pairs of its own, with some parts left out at random. Energies and odds count beside them, see :func:`choose_anchor`.

How far held-out inputs can be believed is asked first, see :func:`seen_before`.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.model.evidence import Evidence
from abnn.model.network import AttachedNetwork
from abnn.scores.combined import CUT, MEMBERS, say
from abnn.train.combine.gather import Made
from abnn.train.combine.hidden_words import HiddenWords

WEIGHTS = {
    ("ordinary", "near"): (6.0, 4.0),
    ("ordinary", "destroyed"): (4.0, 3.0),
    ("changed", "near"): (8.0, 4.0),
    ("changed", "destroyed"): (4.0, 3.0),
    ("near", "destroyed"): (0.3, 12.0),
    ("right", "wrong"): (3.0, 1.5),
    ("readable", "misread"): (4.0, 1.0),
    ("ordinary", "changed"): (0.5, 0.5),
}
"""How much each pair counts where held-out inputs are new to the network, and where they are not; the first of a pair is to be less uncertain."""
KNOWN, WELL_KNOWN = 0.95, 0.99
"""AUROCs of near inputs by the network's own energy: up to the first, held-out inputs are new to it; from the second on, they are not."""
DROPPED = (0.05, 0.5)
"""The share of parts that a member does not see in a step, likewise."""
FEW, ENOUGH = 80, 160
"""Held-out inputs: up to the first, it does not count that changed inputs lie below near ones, nor where features point; from the second on, both count
wholly. To learn from a few inputs that looking changed is an excuse took 30 points off a recurrent network's outliers."""
EXCUSED, LEAST_EXCUSED = (0.58, 0.72), 2.0
"""AUROCs of "changed inputs lie below near ones" by the better of the network's own energy and odds: up to the first, that counts
:data:`LEAST_EXCUSED` where data are new; from the second on, as :data:`WEIGHTS` say. EfficientNet-Lite orders them at 0.75 to 0.86, three MobileNets and a
ResNet-50 at 0.45 to 0.58. With 8 these excused far inputs and mistakes, too, which the networks' own scores find; with 2 no order of held-out inputs is worse than theirs."""
ENERGIES = (["energy"], ["energy", "attached energy"], ["widened energy", "widened attached energy"])
AS_THEY_ARE, WIDENED, TOLERANCE = 0.25, 0.5, 0.01
"""How much energies count beside what was learnt, and what widening may cost in the AUROC of near inputs."""
ODDS = (0.1, 0.0)
"""How much odds do, where held-out inputs are new to the network and where they are not: there its mistakes cannot be seen."""
WORDS = "distance at words"
OF_WORDS = {WORDS: 0.5, "nearest class at words": 0.5, "nearest class at meaning": 0.5, "odds": 0.5}
"""How much each of these counts beside what was learnt, where inputs are words. No pair can teach that: hidden classes are some that the
network has learnt from, so its energies find all of them, and words that nobody knows do not occur in them. Odds are among them, or words would
drown what the network says about its mistakes."""
ROUNDS = 8  # of hidden classes
STEPS, PAIRS, RATE, DECAY = 450, 256, 5e-3, 0.1
FINEST = 1e-3  # unit of a part, relative to its size: what differs by less is rounding


class Seen(NamedTuple):
    """What the model says about held-out inputs and outliers made of them, the labels, and how words of hidden classes are hidden."""

    ordinary: Evidence
    labels: Tensor
    changed: Made | None
    destroyed: Made | None
    hide: HiddenWords


Groups = dict[str, Tensor]
"""Parts of inputs of every kind, in units of what is usual, [N, parts]."""


def unit_of(raw: Tensor) -> Tensor:
    """The spread of each part: that of a standard deviation where it is Gaussian; never zero."""
    ordered = raw.sort(0).values
    low, high = (ordered[round(share * (len(raw) - 1))] for share in (0.05, 0.95))
    return ((high - low) / 3.3).clamp_min(FINEST * (1 + raw.abs().amax(0)))


def groups_of(model: AttachedNetwork, seen: Seen, generator: torch.Generator) -> Groups:
    """Rows of every kind that occurs, over all rounds of hidden classes; one round that hides none where a task cannot."""
    none = torch.zeros(model.classes, dtype=torch.bool)
    rounds = model.task.hidden_classes(model.classes, ROUNDS, generator) or [none]
    if bool((seen.labels == seen.labels[0]).all()):  # of one class: where that is hidden, nothing is left
        rounds = [none]
    found = [_round(model, seen, each.to(seen.labels.device)) for each in rounds]
    return {name: torch.cat([each[name] for each in found]) for name in found[0]}


def _round(model: AttachedNetwork, seen: Seen, hidden: Tensor) -> Groups:
    """Rows of every kind where some classes are hidden."""
    ordinary, labels, changed, destroyed, hide = seen
    combined, task = model.combined, model.task
    visible = (~hidden).nonzero()[:, 0] if bool(hidden.any()) else None
    near = task.hidden_inputs(labels, hidden)
    raw = combined.raw_parts(hide(ordinary, hidden), visible)
    usual = raw if bool(near.all()) else raw[~near]
    centre, unit = usual.median(0).values, unit_of(usual)

    def units(own: Tensor) -> Tensor:
        return ((own - centre) / unit).nan_to_num(nan=CUT)

    x = units(raw)
    right = task.right_inputs(ordinary, labels, hidden)
    kinds = {"ordinary": ~near, "near": near, "right": right & ~near, "wrong": ~right & ~near}
    groups = {name: x[chosen] for name, chosen in kinds.items()}
    if changed is not None:
        evidence, own_labels = changed
        kept = ~task.hidden_inputs(own_labels, hidden)
        rows = units(combined.raw_parts(hide(evidence, hidden), visible))
        read = task.right_inputs(evidence, own_labels, hidden)
        groups |= {"changed": rows[kept], "readable": rows[kept & read], "misread": rows[kept & ~read]}
    if destroyed is not None:
        groups["destroyed"] = units(combined.raw_parts(hide(destroyed[0], hidden), visible))
    return groups


def seen_before(combined: Any, groups: Groups) -> float:
    """Return how sure it is that the network has learnt from this data itself, from 0 to 1: as far as its own energy finds all near inputs.

    Then it makes hardly any mistakes on held-out data, though it will on new data, and all that it says about them is too clean. Near
    inputs are most like those mistakes, so destroyed inputs have to lie above near ones, and the score has to rest on many parts. Where no
    class can be hidden, it is taken to be so.
    """
    found = _near_found(groups, _mean_of(combined, ENERGIES[0]))
    return 1.0 if found is None else _share(found, (KNOWN, WELL_KNOWN))


def fit_members(combined: Any, groups: Groups, known: float, inputs: int, generator: torch.Generator) -> None:
    """Fit the small networks to all pairs that occur; without any, they say nothing.

    known   how sure it is that the network has learnt from this data itself, see :func:`seen_before`
    inputs  how many held-out inputs there are
    """
    names = ("linear", "inner", "offset", "outer")
    dropped = _between(DROPPED, known)
    pairs = [
        (*pair, weight)
        for pair, weight in weights_of(combined, groups, known, inputs).items()
        if weight and all(len(groups.get(name, ())) for name in pair)
    ]
    if not pairs:
        for name in names:
            getattr(combined, name).zero_()
        return
    device, parts, hidden = combined.linear.device, combined.taught, combined.inner.shape[2]
    values = {}
    for name, scale in zip(names, (0.0, parts**-0.5, 0.3, hidden**-0.5)):
        own = getattr(combined, name)
        shape = own[:, :parts].shape if name in ("linear", "inner") else own.shape
        start = scale * torch.randn(shape, generator=generator, dtype=torch.float32)
        values[name] = start.to(device).requires_grad_(True)
    sides = [name for less, more, _ in pairs for name in (less, more)]
    rows = {name: groups[name] for name in dict.fromkeys(sides)}
    table = torch.cat([*rows.values()])[:, :parts].clamp(-CUT, CUT)
    starts = dict(zip(rows, itertools.accumulate(map(len, rows.values()), initial=0)))
    weights = table.new_tensor([weight for *_, weight in pairs])
    optimizer = torch.optim.AdamW(values.values(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def draw(name: str) -> Tensor:
        """Rows of the table for every member, [MEMBERS, PAIRS]: inputs of that kind."""
        return starts[name] + torch.randint(len(rows[name]), (MEMBERS, PAIRS), generator=generator)

    for _ in range(STEPS):
        chances = torch.rand(MEMBERS, 1, parts, generator=generator, dtype=torch.float32)
        shown = (chances >= dropped).float().mT.to(device)
        places = torch.stack([draw(name) for name in sides], dim=1)
        x = table.index_select(0, places.flatten().to(device)).unflatten(0, (MEMBERS, -1))
        said = say(x, **values | {name: values[name] * shown for name in ("linear", "inner")})
        less, more = said.unflatten(1, (len(pairs), 2, PAIRS)).unbind(2)
        loss = (weights * F.softplus(less - more).mean(2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        for name, value in values.items():
            getattr(combined, name).zero_()[:, : value.shape[1]].copy_(value)


def weights_of(combined: Any, groups: Groups, known: float, inputs: int) -> dict[tuple[str, str], float]:
    """Return how much each pair counts. That changed inputs lie below near ones: as far as the network's own scores say so, and inputs are enough to tell."""
    weights = {pair: _between(ends, known) for pair, ends in WEIGHTS.items()}
    pair = ("changed", "near")
    own = [combined.names.index(name) for name in ("energy", "odds") if name in combined.names]
    changed, near = (groups.get(name, torch.zeros(0, 0)) for name in pair)
    excused = max((auroc(changed[:, n], near[:, n]) for n in own), default=1.0) if len(changed) and len(near) else 1.0
    new, seen = WEIGHTS[pair]
    new = _between((LEAST_EXCUSED, new), _share(excused, EXCUSED))
    weights[pair] = enough(inputs) * _between((new, seen), known)
    return weights


def enough(inputs: int) -> float:
    """Return how far so many held-out inputs can be believed, from 0 to 1."""
    return _share(inputs, (FEW, ENOUGH))


def _share(value: float, ends: tuple[float, float]) -> float:
    """Return how far a value is on its way from one end to the other, from 0 to 1."""
    low, high = ends
    return min(1.0, max(0.0, (value - low) / (high - low)))


def _between(ends: tuple[float, float], share: float) -> float:
    """Return the number between both ends that is so far on its way from the first to the second."""
    first, second = ends
    return first + share * (second - first)


def choose_anchor(combined: Any, groups: Groups, known: float) -> Tensor:
    """How much energies and odds count beside what was learnt. Energies: with and without attachments, widened where that costs nothing.

    Where the data are few for what the network knows, variances are noise, and near inputs, which lie where ordinary ones do,
    drown in it; elsewhere widened energies are the better ones.
    """
    own, both, widened = (_mean_of(combined, names) for names in ENERGIES)
    anchor = WIDENED * widened
    by_widened, by_own = _near_found(groups, widened), _near_found(groups, own)
    if by_widened is not None and by_own is not None and by_widened < by_own - TOLERANCE:
        anchor = AS_THEY_ARE * both
    beside = OF_WORDS if WORDS in combined.names else {"odds": _between(ODDS, known)}
    for name, weight in beside.items():
        if name in combined.names:
            anchor[combined.names.index(name)] += weight
    return anchor


def _near_found(groups: Groups, weights: Tensor) -> float | None:
    """The AUROC of near against ordinary inputs by a weighted sum of parts; None where either are missing."""
    if not {"ordinary", "near"} <= groups.keys() or not len(groups["near"]):
        return None
    return auroc(groups["ordinary"] @ weights, groups["near"] @ weights)


def _mean_of(combined: Any, names: list[str]) -> Tensor:
    """Weights of parts that give the mean of the named ones; a task without them has its first part instead."""
    weights = torch.zeros_like(combined.centre)
    places = [combined.names.index(name) for name in names if name in combined.names] or [0]
    weights[places] = 1 / len(places)
    return weights


def auroc(less: Tensor, more: Tensor) -> float:
    """P(more > less) + P(equal) / 2."""
    ordered, more = less.sort().values, more.contiguous()
    below = torch.searchsorted(ordered, more) + torch.searchsorted(ordered, more, right=True)
    return float(below.cpu().double().mean()) / (2 * max(1, len(less)))
