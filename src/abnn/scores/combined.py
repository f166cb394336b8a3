"""One score of everything that a pass says about an input; what counts how much was learnt from the network's own data.

The parts (energies, odds and entropies with and without attachments, ln v and the nearest class at every place, what the witness
says; see the tasks, :mod:`abnn.bayes.closed_form` and :mod:`abnn.bayes.witness`) are measured in units of what is usual: x = (part -
median) / (q_95 - q_5) * 3.3 on held-out ordinary inputs, cut to +-8. Then

    score = mean_m s_m(x) + anchor' x + D + T,    s_m(x) = w_m' x + b_m' tanh(A_m x + a_m), each standardised on ordinary inputs,

    D = max(0, x_destroyed - q) + max(0, x_direction - r),    T = 10 max(0, max_k v_k / Q_k - 1).

The small networks s_m are fitted to pairs of inputs of which one should be more uncertain, see :mod:`abnn.train.combine`. The
network's energies always count, cut below -100 only, and where its data are new its odds: ``anchor`` says how much. D is zero wherever 95 % of the inputs
lie that are changed but can be read: what looks more destroyed than these counts by that much. Where the network's data are new to it, an unfamiliar direction of its last features
(:mod:`abnn.bayes.direction`) does so, too; no small network sees that part. Of tables D has another term, max(0, x_odds). T is zero wherever ordinary inputs are, and
grows without bound outside: with Q_k the largest variance of held-out inputs, changed ones among them, doubled; for tables, whose
inputs have no other bounds, the 95 % quantile of ordinary ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from abnn.bayes.claims import claims_of
from abnn.bayes.derived import Derived
from abnn.bayes.direction import Direction
from abnn.bayes.witness import KINDS
from abnn.model.evidence import Evidence
from abnn.model.features import condensed_width, direction
from abnn.scores.registry import score
from abnn.tasks.base import Task, Usual
from abnn.tasks.classification import UNCLAIMED

CHANGED, DESTROYED, DIRECTION = "looks changed", "looks destroyed", "direction"
MEMBERS, HIDDEN = 8, 16
CUT = 8.0
STEEPNESS = 10.0
LARGEST = 84.0  # of ln v_k / Q_k: float32 ends at 88
NEVER = 6e4  # units, which half precision can hold
WEIGHT_OF_ODDS = 0.5  # in the score "failures"
LOWEST = -100.0  # of energies: far away those of ReLU networks fall as fast as inputs grow


def say(x: Tensor, linear: Tensor, inner: Tensor, offset: Tensor, outer: Tensor) -> Tensor:
    """s_m(x) of every small network, [members, B]; ``x``: [B, parts], or [members, B, parts] with inputs of their own."""
    hidden = torch.tanh(torch.matmul(x, inner) + offset)
    return (torch.matmul(x, linear) + torch.matmul(hidden, outer)).squeeze(-1)


class Constants(NamedTuple):
    """What the score is computed with, made from what was learnt.

    The parts and, behind them, ln v_k are looked at in four ways, [4, parts + places]: cut for the small networks; cut below for the
    energies; how far they are beyond what can be read; and how far beyond ``familiar`` (of how changed it looks) and beyond Q_k (of ln v_k). All other
    parts are 1 in the last way; there the weight of "looks destroyed" is what the small networks' means take off.

    centre, unit      of what is looked at, [parts + places]
    shift, low, high  of each way: max(low, min(high, x - shift))
    weight            of everything that is summed up, the small networks' linear parts and offsets among it, [4 (parts + places)]
    inner, offset     of all small networks, side by side, [parts, members · hidden] and [members · hidden]
    outer             [members · hidden]
    least             the shortest distance of the last features from their mean that has a direction
    """

    centre: Tensor
    unit: Tensor
    shift: Tensor
    low: Tensor
    high: Tensor
    weight: Tensor
    inner: Tensor
    offset: Tensor
    outer: Tensor
    least: Tensor


class Claims(NamedTuple):
    """The directions of the last features that classes claim, see :mod:`abnn.bayes.claims`; a tuple, as :class:`Derived` holds it."""

    matrix: Tensor


class Combined(nn.Module):
    """The learnt score of one network: from evidence to one number for each input, and to its parts.

    places   where variances are read, see AttachedNetwork.places
    readout  how many features go into the network's last linear layer; None: it has none
    classes  whether these places tell classes apart
    hides    whether a fit can hide classes; then the direction of the last features is a part, the last one
    """

    fitted: Tensor

    def __init__(
        self, task: Task, places: Sequence[str], readout: int | None, classes: bool = False, hides: bool = False
    ) -> None:
        super().__init__()
        self.task = task
        self.own = task.part_names(readout is not None)
        self.names = [*self.own, *(f"distance at {place}" for place in places), *(f"looks {kind}" for kind in KINDS)]
        self.names += [f"nearest class at {place}" for place in places] if classes else []
        self.taught = len(self.names)  # parts that the small networks see
        self.direction = None
        if hides and readout is not None and readout > 1:  # one number has no direction
            self.direction = Direction(condensed_width((1, readout), "flat"))
        self.names += [DIRECTION] if self.direction is not None else []
        parts = len(self.names)
        sizes = {
            "usual_variances": (len(places),), "usual_last": (readout or 0,), "ceiling": (),
            "centre": (parts,), "unit": (parts,), "bounds": (len(places),), "anchor": (parts,), "readable": (parts,),
            "linear": (MEMBERS, parts, 1), "inner": (MEMBERS, parts, HIDDEN), "offset": (MEMBERS, 1, HIDDEN),
            "outer": (MEMBERS, HIDDEN, 1), "mean": (MEMBERS, 1), "spread": (MEMBERS, 1), "familiar": (), "trust": (),
        }  # fmt: skip
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(size))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self.widths = task.spread
        self._derived: Derived[Constants] = Derived()
        self._claims: Derived[Claims] = Derived()
        self.__dict__["head"] = None  # the network's last linear layer, no module of this one

    def is_ready(self) -> bool:
        """Whether a fit has learnt it. Remembered until that changes: reading a value makes the host wait for the device."""
        if self.fitted.is_inference():  # which does not count how often it was written to
            return bool(self.fitted)
        now = self.fitted, self.fitted._version
        before = self.__dict__.get("_ready")
        if before is None or before[0] is not now[0] or before[1] != now[1]:
            before = self.__dict__["_ready"] = (*now, bool(self.fitted))
        return before[2]

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads its own buffers."""
        return {name: value for name, value in self.__dict__.items() if name != "_ready"}

    def usual(self, weight: Tensor | None) -> Usual:
        """What is usual on ordinary data; ``weight``: of the network's last linear layer."""
        b: Any = self
        return Usual(b.usual_variances, b.usual_last, b.ceiling, self.constants().least, self.claims(weight))

    def claims(self, weight: Tensor | None) -> Tensor | None:
        """Return the directions that classes claim, which follow from the weights of the last layer; None where no part needs them."""
        if weight is None or UNCLAIMED not in self.own:
            return None
        head: nn.Module | None = self.__dict__["head"]  # a parametrised one has another weight each time it is asked
        sources: list[Tensor] = [weight]
        if head is not None and not isinstance(weight, nn.Parameter):
            sources = [*head.parameters(), *head.buffers()]
        return self._claims.get(sources, lambda: Claims(claims_of(weight))).matrix

    def constants(self) -> Constants:
        """What follows from the buffers, see :class:`abnn.bayes.derived.Derived`."""
        return self._derived.get([*self._buffers.values()], self._make_constants)  # type: ignore[list-item]

    def _make_constants(self) -> Constants:
        b: Any = self
        parts, places, changed = len(self.names), len(b.bounds), self.names.index(CHANGED)
        wide = torch.float32 if b.centre.device.type == "mps" else torch.float64  # which MPS does not have
        share = (1 / (MEMBERS * b.spread.to(wide))).unsqueeze(2)  # of each member
        ways = b.centre.new_zeros(3, 4, parts + places)
        shift, low, high = ways
        infinite = torch.finfo(low.dtype).max
        low[0, :parts], high[0, :parts] = -CUT, CUT
        low[1, :parts], high[1, :parts] = LOWEST, infinite
        shift[2, :parts], high[2, :parts] = b.readable, infinite
        low[3, :parts] = high[3, :parts] = 1
        shift[3, changed], low[3, changed] = b.familiar, 0
        high[3, parts:] = LARGEST
        weight = torch.zeros_like(low, dtype=wide)
        weight[0, :parts] = (b.linear * share).sum((0, 2))
        weight[1, :parts], weight[2, :parts] = b.anchor, b.readable < NEVER / 2
        weight[3, self.names.index(DESTROYED)] = -(b.mean * share[..., 0]).sum()
        return Constants(
            torch.cat([b.centre, b.bounds]),
            torch.cat([b.unit, torch.ones_like(b.bounds)]),
            shift, low, high, weight.flatten().to(low),
            b.inner.transpose(0, 1).flatten(1).clone(), b.offset.flatten().clone(), (b.outer * share).flatten().to(low),
            1e-3 * b.usual_last.norm().clamp_min(1e-9),
        )  # fmt: skip

    def raw_parts(self, evidence: Evidence, visible: Tensor | None = None) -> Tensor:
        """[B, parts], in units of their own."""
        return torch.cat(self._raw(evidence, visible), dim=1)

    def _raw(self, evidence: Evidence, visible: Tensor | None = None) -> list[Tensor]:
        parts = [self.task.parts(evidence, self.usual(evidence.weight), visible), evidence.variances, evidence.kinds]
        if evidence.classes is not None:
            of_classes = evidence.classes if visible is None else evidence.classes[:, :, visible]
            parts.append(of_classes[:, :, 0] if of_classes.shape[2] == 1 else of_classes.amin(2))
        if self.direction is not None:
            assert evidence.last is not None
            parts.append(self.direction(direction(evidence.last))[:, None])
        return parts

    def in_units(self, raw: Tensor) -> Tensor:
        """In units of what is usual, [B, parts]."""
        return ((raw - self.centre) / self.unit).nan_to_num(nan=CUT)  # type: ignore[operator]

    def members(self, x: Tensor) -> Tensor:
        """What each small network says, not standardised, [members, B]."""
        return say(x.clamp(-CUT, CUT), self.linear, self.inner, self.offset, self.outer)  # type: ignore[arg-type]

    def far(self, variances: Tensor) -> Tensor:
        """T of the module's formula; :meth:`judge` computes the same with fewer kernels."""
        beyond = (variances - self.bounds).amax(1).clamp(0, LARGEST)  # type: ignore[operator]
        return STEEPNESS * beyond.expm1()

    def destroyed(self, x: Tensor) -> Tensor:
        """D of the module's formula, [B], likewise; ``readable`` has q and r at the places of their parts, 0 at that of odds for tables, and :data:`NEVER` elsewhere, where nothing counts."""
        return ((x - self.readable).clamp_min(0) * (self.readable < NEVER / 2)).sum(1)  # type: ignore[operator]

    def forward(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """The score of each input, [B], and its parts in units of what is usual, [B, parts]; never in half precision."""
        return self.judge(evidence)[:2]

    def judge(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        """Return the score, [B], its parts, [B, parts], and how much of :attr:`Prediction.probs` is the attached prediction, [B].

        Nothing up to ``familiar`` units of how changed ordinary inputs look, ``trust`` from one unit more on; see
        :mod:`abnn.train.combine.trust`.
        """
        with torch.autocast(evidence.plain.device.type, enabled=False):
            constants, count = self.constants(), len(self.names)
            raw = torch.cat([*self._raw(evidence), evidence.variances], dim=1)
            x = ((raw - constants.centre) / constants.unit).nan_to_num(nan=CUT)
            ways = (x[:, None] - constants.shift).clamp(constants.low, constants.high)
            hidden = torch.addmm(constants.offset, ways[:, 0, :count], constants.inner).tanh()
            near = ways.flatten(1) @ constants.weight + hidden @ constants.outer
            far = ways[:, 3, count:].amax(1).expm1()
            share = ways[:, 3, self.names.index(CHANGED)] * self.trust  # type: ignore[operator]
            return near.add(far, alpha=STEEPNESS), x[:, :count], share


@score("combined", statistics=True)
def _combined(prediction: Any) -> Tensor:
    return prediction.combined


@score("failures", statistics=True, about=("classes", "labels"))
def _failures(prediction: Any) -> Tensor:
    """For whoever asks "is this prediction wrong?" of ordinary, changed and unknown inputs alike: small odds count more."""
    return prediction.combined + WEIGHT_OF_ODDS * prediction.parts["odds"].clamp(-CUT, CUT)


@score("energy", statistics=True, about=("classes", "labels"))
def _energy(prediction: Any) -> Tensor:
    return prediction.parts["energy"]


@score("distance", statistics=True)
def _distance(prediction: Any) -> Tensor:
    """The mean of ln v over all places, in units of what is usual."""
    return torch.stack([part for name, part in prediction.parts.items() if name.startswith("distance at ")]).mean(0)
