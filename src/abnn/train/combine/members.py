"""The small networks of the combined score (its *members*), and how much energies count beside them.

A score has to tell four kinds of inputs apart:

    ordinary   held-out inputs as they are. The network's own predictions split them into *right* and *wrong* ones
    changed    outliers of severity at most 0.3. The same predictions split them into *readable* and *misread* ones
    destroyed  outliers of severity at least 0.7
    near       ordinary inputs of a hidden class: a random fifth of the classes is hidden, several times over, by
               leaving their logits out

The members learn to order pairs of inputs of different kinds:

    minimise  sum over pairs  weight * softplus(s(less) - s(more)).

Each member sees pairs of its own, with some parts left out at random. Energies and odds count beside the members, see
:func:`choose_anchor`. :func:`training_overlap` first asks how far held-out inputs can be believed.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.model.evidence import Evidence
from abnn.model.network import AttachedNetwork
from abnn.scores.combined import CUT, MEMBERS, member_scores
from abnn.train.combine.gather import LabelledOutliers
from abnn.train.combine.hidden_words import HiddenWords


class ByOverlap(NamedTuple):
    """A setting with one value for each end of :func:`training_overlap`.

    new      where held-out inputs are new to the network
    trained  where the network was trained on them
    """

    new: float
    trained: float

    def at(self, overlap: float) -> float:
        """Return the value for an overlap in [0, 1], on the line between both ends."""
        return _between(self.new, self.trained, overlap)


class Ramp(NamedTuple):
    """Two values between which something begins to count: not at all up to ``start``, fully from ``end`` on."""

    start: float
    end: float

    def share(self, value: float) -> float:
        """Return how far a value is on its way from start to end, in [0, 1]."""
        return min(1.0, max(0.0, (value - self.start) / (self.end - self.start)))


WEIGHTS = {
    ("ordinary", "near"): ByOverlap(new=6.0, trained=4.0),
    ("ordinary", "destroyed"): ByOverlap(new=4.0, trained=3.0),
    ("changed", "near"): ByOverlap(new=8.0, trained=4.0),
    ("changed", "destroyed"): ByOverlap(new=4.0, trained=3.0),
    ("near", "destroyed"): ByOverlap(new=0.3, trained=12.0),
    ("right", "wrong"): ByOverlap(new=3.0, trained=1.5),
    ("readable", "misread"): ByOverlap(new=4.0, trained=1.0),
    ("ordinary", "changed"): ByOverlap(new=0.5, trained=0.5),
}
"""How much each pair of kinds counts; inputs of the first kind should get the lower score."""
OVERLAP_AUROC = Ramp(0.95, 0.99)
"""AUROCs of near against ordinary inputs by the network's own energy: :func:`training_overlap` follows from them."""
DROPPED_SHARE = ByOverlap(new=0.05, trained=0.5)
"""The share of parts that a member does not see in one step."""
ENOUGH_INPUTS = Ramp(80, 160)
"""Numbers of held-out inputs. They decide how much the pair changed below near counts, and how much directions count.
From a few inputs, members learn that looking changed is an excuse: that took 30 points off a recurrent network's
outliers."""
EXCUSE_AUROC, LEAST_EXCUSE = Ramp(0.58, 0.72), 2.0
"""AUROCs of near against changed inputs by the network's own energy or odds, whichever is better; and the least weight
of this pair where data are new. The weight grows from there to that of :data:`WEIGHTS`.

EfficientNet-Lite orders these inputs at 0.75 to 0.86, three MobileNets and a ResNet-50 at 0.45 to 0.58. With a weight
of 8, the score of these also excused far inputs and mistakes, which the networks' own scores find. With 2, no order of
held-out inputs is worse than that of the networks' own scores."""
EXCUSE_READ = Ramp(0.45, 0.55)
"""The weight also grows with how often the network is right on changed inputs, relative to ordinary ones; the smaller
growth counts.

Networks for ImageNet whose weight is above the least are right 0.55 times as often or more. Networks of 39 to 52 %
accuracy on small pictures, of three architectures, are 0.41 to 0.47 times. With a weight of 4 to 8, the score of these
lost far images, and two of them had drawings that they cannot read below ordinary images."""
PLAIN_ENERGY = ["energy"]
BOTH_ENERGIES = ["energy", "attached energy"]
WIDENED_ENERGIES = ["widened energy", "widened attached energy"]
BOTH_WEIGHT, WIDENED_WEIGHT = 0.25, 0.5
"""How much the mean of both energies counts beside the members, and how much that of both widened energies."""
WIDENING_TOLERANCE = 0.01
"""How much lower the AUROC of near inputs by widened energies may be than by the plain energy."""
ODDS_WEIGHT = ByOverlap(new=0.1, trained=0.0)
"""How much odds count beside the members. A network shows no mistakes on data that it was trained on."""
WORDS = "distance at words"
WORD_WEIGHTS = {WORDS: 0.5, "nearest class at words": 0.5, "nearest class at meaning": 0.5, "odds": 0.5}
"""How much each of these parts counts beside the members, where inputs are words.

No pair can teach these weights: the network has learnt from hidden classes, so its energies find all of them, and words
that nobody knows do not occur in them. Odds are in the list, or words would drown what the network says about its
mistakes."""
ROUNDS = 8  # of hidden classes
STEPS, PAIRS, RATE, DECAY = 450, 256, 5e-3, 0.1
FINEST = 1e-3  # the least unit of a part, relative to its size: smaller differences are rounding


class HeldOut(NamedTuple):
    """What is known about held-out inputs.

    ordinary            evidence of the inputs themselves
    labels              their labels
    changed, destroyed  outliers made of them; None: there are none
    hide                gives evidence in which the words of hidden classes are unknown
    """

    ordinary: Evidence
    labels: Tensor
    changed: LabelledOutliers | None
    destroyed: LabelledOutliers | None
    hide: HiddenWords


Groups = dict[str, Tensor]
"""Parts of the inputs of every kind, in units of what is usual, [N, parts]."""


def unit_of(raw: Tensor) -> Tensor:
    """Return the spread of each part, never zero. For a Gaussian part it is the standard deviation."""
    ordered = raw.sort(0).values
    low, high = (ordered[round(share * (len(raw) - 1))] for share in (0.05, 0.95))
    return ((high - low) / 3.3).clamp_min(FINEST * (1 + raw.abs().amax(0)))


def gather_groups(model: AttachedNetwork, held_out: HeldOut, generator: torch.Generator) -> Groups:
    """Return the parts of inputs of every kind that occurs, from all rounds of hidden classes.

    Where a task cannot hide classes, there is one round that hides none.
    """
    nothing = torch.zeros(model.classes, dtype=torch.bool)
    rounds = model.task.hidden_classes(model.classes, ROUNDS, generator) or [nothing]
    labels = held_out.labels
    if bool((labels == labels[0]).all()):  # a single class: with it hidden, nothing would be left
        rounds = [nothing]
    groups = [_groups_of_round(model, held_out, hidden.to(labels.device)) for hidden in rounds]
    return {name: torch.cat([group[name] for group in groups]) for name in groups[0]}


def _groups_of_round(model: AttachedNetwork, held_out: HeldOut, hidden: Tensor) -> Groups:
    """Return the parts of inputs of every kind while some classes, [C] as bools, are hidden."""
    ordinary, labels, changed, destroyed, hide = held_out
    combined, task = model.combined, model.task
    visible = (~hidden).nonzero()[:, 0] if bool(hidden.any()) else None
    near = task.hidden_inputs(labels, hidden)
    raw = combined.raw_parts(hide(ordinary, hidden), visible)
    usual = raw if bool(near.all()) else raw[~near]
    centre, unit = usual.median(0).values, unit_of(usual)

    def in_units(values: Tensor) -> Tensor:
        return ((values - centre) / unit).nan_to_num(nan=CUT)

    parts = in_units(raw)
    right = task.right_inputs(ordinary, labels, hidden)
    masks = {"ordinary": ~near, "near": near, "right": right & ~near, "wrong": ~right & ~near}
    groups = {name: parts[mask] for name, mask in masks.items()}
    if changed is not None:
        visible_class = ~task.hidden_inputs(changed.labels, hidden)
        parts = in_units(combined.raw_parts(hide(changed.evidence, hidden), visible))
        right = task.right_inputs(changed.evidence, changed.labels, hidden)
        groups["changed"] = parts[visible_class]
        groups["readable"] = parts[visible_class & right]
        groups["misread"] = parts[visible_class & ~right]
    if destroyed is not None:
        groups["destroyed"] = in_units(combined.raw_parts(hide(destroyed.evidence, hidden), visible))
    return groups


def training_overlap(combined: Any, groups: Groups) -> float:
    """Return how sure it is that the network was trained on the held-out inputs: 0 they are new to it, 1 it was.

    A network that was trained on them finds nearly all near inputs by its own energy. It then makes hardly any mistakes
    on held-out inputs, though it will on new ones, and all that it says about them is too clean. Near inputs are most
    like its future mistakes: so destroyed inputs have to lie above near ones, and the score has to rest on many parts.

    Where no class can be hidden, the answer is 1.
    """
    near_auroc = _near_auroc(groups, _mean_weights(combined, PLAIN_ENERGY))
    return 1.0 if near_auroc is None else OVERLAP_AUROC.share(near_auroc)


def fit_members(combined: Any, groups: Groups, overlap: float, inputs: int, generator: torch.Generator) -> None:
    """Fit the small networks to all pairs of kinds that occur. Without any pair, all their weights become zero.

    overlap  see :func:`training_overlap`
    inputs   how many held-out inputs there are
    """
    names = ("linear", "inner", "offset", "outer")
    dropped_share = DROPPED_SHARE.at(overlap)
    pairs = [
        (*pair, weight)
        for pair, weight in pair_weights(combined, groups, overlap, inputs).items()
        if weight and all(len(groups.get(name, ())) for name in pair)
    ]
    if not pairs:
        for name in names:
            getattr(combined, name).zero_()
        return
    device, parts, hidden = combined.linear.device, combined.member_parts, combined.inner.shape[2]
    parameters = {}
    for name, scale in zip(names, (0.0, parts**-0.5, 0.3, hidden**-0.5)):
        buffer = getattr(combined, name)
        shape = buffer[:, :parts].shape if name in ("linear", "inner") else buffer.shape
        start = scale * torch.randn(shape, generator=generator, dtype=torch.float32)
        parameters[name] = start.to(device).requires_grad_(True)
    sides = [name for less, more, _ in pairs for name in (less, more)]
    groups = {name: groups[name] for name in dict.fromkeys(sides)}
    table = torch.cat([*groups.values()])[:, :parts].clamp(-CUT, CUT)
    first_rows = dict(zip(groups, itertools.accumulate(map(len, groups.values()), initial=0)))
    weights = table.new_tensor([weight for *_, weight in pairs])
    optimizer = torch.optim.AdamW(parameters.values(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

    def draw_rows(name: str) -> Tensor:
        """Return rows of the table with inputs of this kind for every member, [MEMBERS, PAIRS]."""
        return first_rows[name] + torch.randint(len(groups[name]), (MEMBERS, PAIRS), generator=generator)

    for _ in range(STEPS):
        chances = torch.rand(MEMBERS, 1, parts, generator=generator, dtype=torch.float32)
        mask = (chances >= dropped_share).float().mT.to(device)
        rows = torch.stack([draw_rows(name) for name in sides], dim=1)
        x = table.index_select(0, rows.flatten().to(device)).unflatten(0, (MEMBERS, -1))
        scores = member_scores(x, **parameters | {name: parameters[name] * mask for name in ("linear", "inner")})
        less, more = scores.unflatten(1, (len(pairs), 2, PAIRS)).unbind(2)
        loss = (weights * F.softplus(less - more).mean(2)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        for name, parameter in parameters.items():
            getattr(combined, name).zero_()[:, : parameter.shape[1]].copy_(parameter)


def pair_weights(combined: Any, groups: Groups, overlap: float, inputs: int) -> dict[tuple[str, str], float]:
    """Return how much each pair of kinds counts.

    The pair changed below near counts less where there are few inputs. Where data are new, it also counts less if
    neither the network's energy nor its odds order it well, or if the network hardly reads changed inputs: change is
    excused as far as the network itself does so, and copes with it.
    """
    weights = {pair: weight.at(overlap) for pair, weight in WEIGHTS.items()}
    pair = ("changed", "near")
    columns = [combined.names.index(name) for name in ("energy", "odds") if name in combined.names]
    changed, near = (groups.get(name, torch.zeros(0, 0)) for name in pair)
    best = 1.0
    if len(changed) and len(near):
        best = max((auroc(changed[:, column], near[:, column]) for column in columns), default=1.0)
    full = WEIGHTS[pair]
    excuse = min(EXCUSE_AUROC.share(best), EXCUSE_READ.share(_read_changed(groups)))
    new = _between(LEAST_EXCUSE, full.new, excuse)
    weights[pair] = ENOUGH_INPUTS.share(inputs) * full._replace(new=new).at(overlap)
    return weights


def _read_changed(groups: Groups) -> float:
    """Return how often the network is right on changed inputs, relative to ordinary ones; 1 where nobody knows."""
    sizes = {name: len(groups.get(name, ())) for name in ("right", "ordinary", "readable", "changed")}
    if not all(sizes[name] for name in ("right", "ordinary", "changed")):
        return 1.0
    return sizes["readable"] / sizes["changed"] * sizes["ordinary"] / sizes["right"]


def _between(first: float, second: float, share: float) -> float:
    """Return the number that lies this share of the way from the first number to the second."""
    return first + share * (second - first)


def choose_anchor(combined: Any, groups: Groups, overlap: float) -> Tensor:
    """Return how much each part counts beside the members, [parts]: energies and odds, and words where inputs are
    words.

    Energies are those with and without attachments. Widened energies are used unless they find near inputs worse. They
    do where the data are few for what the network knows: variances are noise then, and near inputs drown in it, because
    they lie where ordinary ones do.
    """
    plain, both, widened = (_mean_weights(combined, names) for names in (PLAIN_ENERGY, BOTH_ENERGIES, WIDENED_ENERGIES))
    anchor = WIDENED_WEIGHT * widened
    by_widened, by_plain = _near_auroc(groups, widened), _near_auroc(groups, plain)
    if by_widened is not None and by_plain is not None and by_widened < by_plain - WIDENING_TOLERANCE:
        anchor = BOTH_WEIGHT * both
    others = WORD_WEIGHTS if WORDS in combined.names else {"odds": ODDS_WEIGHT.at(overlap)}
    for name, weight in others.items():
        if name in combined.names:
            anchor[combined.names.index(name)] += weight
    return anchor


def _near_auroc(groups: Groups, weights: Tensor) -> float | None:
    """Return the AUROC of near against ordinary inputs by a weighted sum of parts; None where one kind is missing."""
    if not {"ordinary", "near"} <= groups.keys() or not len(groups["near"]):
        return None
    return auroc(groups["ordinary"] @ weights, groups["near"] @ weights)


def _mean_weights(combined: Any, names: list[str]) -> Tensor:
    """Return weights of all parts that give the mean of the named ones; of the first part where a task has none."""
    weights = torch.zeros_like(combined.centre)
    places = [combined.names.index(name) for name in names if name in combined.names] or [0]
    weights[places] = 1 / len(places)
    return weights


def auroc(less: Tensor, more: Tensor) -> float:
    """P(more > less) + P(equal) / 2."""
    ordered, more = less.sort().values, more.contiguous()
    below = torch.searchsorted(ordered, more) + torch.searchsorted(ordered, more, right=True)
    return float(below.cpu().double().mean()) / (2 * max(1, len(less)))
