"""The learnt score: one number for each input, from everything that a pass says about it.

What a pass says comes in parts: energies, odds and entropies with and without attachments, ln v and the nearest class
at every place, what the witness says. See the tasks, :mod:`abnn.bayes.closed_form` and :mod:`abnn.bayes.witness`. Parts
are measured in units of what is usual on held-out ordinary inputs: x = (part - median) / (q_95 - q_5) * 3.3. Then

    score = mean_m s_m(x) + anchor' x + D + T,

    s_m(x) = w_m' x + b_m' tanh(A_m x + a_m), standardised on ordinary inputs, with x cut to +-8,
    D = max(0, x_destroyed - q) + max(0, x_direction - r),
    T = 10 max(0, max_k v_k / Q_k - 1).

s_m     Small networks, the *members*. They learn to order pairs of inputs, see :mod:`abnn.train.combine`.
anchor  How much some parts count beside the members: the network's energies always, its odds where its data are new.
        These are cut below -100 only.
D       What looks more destroyed than 95 % of the changed inputs that can still be read counts by how much it does. So
        does an unfamiliar direction of the last features (:mod:`abnn.bayes.direction`), where the network's data are
        new to it; no member sees that part. For tables D has another term, max(0, x_odds).
T       Zero wherever ordinary inputs are, and without bound outside. Q_k is twice the largest variance of held-out
        inputs, changed ones among them. For tables, whose inputs have no other bounds, it is the 95 % quantile of
        ordinary ones.
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
NEVER = 6e4  # units: a limit that no part reaches; half precision can hold it
WEIGHT_OF_ODDS = 0.5  # in the score "failures"
LOWEST = -100.0  # of energies: far away those of ReLU networks fall as fast as inputs grow


def member_scores(x: Tensor, linear: Tensor, inner: Tensor, offset: Tensor, outer: Tensor) -> Tensor:
    """Return s_m(x) of every member, not standardised, [members, B].

    x  the parts, [B, parts]; or [members, B, parts], where each member has inputs of its own
    """
    hidden = torch.tanh(torch.matmul(x, inner) + offset)
    return (torch.matmul(x, linear) + torch.matmul(hidden, outer)).squeeze(-1)


FOR_MEMBERS, FOR_ANCHOR, FOR_DESTROYED, FOR_LIMITS = range(4)
"""The rows of ``shift``, ``low`` and ``high`` in :class:`Constants`: what the shifted and cut inputs are for."""


class Constants(NamedTuple):
    """What predictions compute the score with; it follows from the buffers of :class:`Combined`.

    The inputs of the computation are all parts and, behind them, ln v_k of every place. They are shifted and cut in
    four ways, which give four rows, [4, parts + places]:

    FOR_MEMBERS    parts cut to +-8
    FOR_ANCHOR     parts cut below, at :data:`LOWEST`
    FOR_DESTROYED  how far parts are above ``readable``; the sum is D
    FOR_LIMITS     of "looks changed", how far it is above ``familiar``, at most 1; of ln v_k, how far above ln Q_k. All
                   other parts are 1 in this row. One of these ones, that of "looks destroyed", carries minus the
                   members' means

    centre, unit      of the inputs, [parts + places]
    shift, low, high  of each row: max(low, min(high, input - shift))
    weight            of all rows in the sum that is linear: the members' linear terms and offsets, anchor and D,
                      [4 (parts + places)]
    inner, offset     of all members, side by side, [parts, members · hidden] and [members · hidden]
    outer             likewise, [members · hidden]
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
    """The directions of the last features that classes claim, see :mod:`abnn.bayes.claims`.

    It is a tuple because :class:`Derived` holds tuples.
    """

    matrix: Tensor


class Combined(nn.Module):
    """The learnt score of one network: from evidence to one number for each input, and to its parts.

    places   the names of the places where variances are read, see AttachedNetwork.places
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
        self.task_parts = task.part_names(readout is not None)
        self.names = [*self.task_parts, *(f"distance at {place}" for place in places)]
        self.names += [f"looks {kind}" for kind in KINDS]
        self.names += [f"nearest class at {place}" for place in places] if classes else []
        self.member_parts = len(self.names)  # how many parts members see, the first ones
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
        """Return whether a fit has learnt the score.

        The answer is remembered until the buffer changes: reading a value makes the host wait for the device.
        """
        if self.fitted.is_inference():  # such tensors do not count how often they were written to
            return bool(self.fitted)
        now = self.fitted, self.fitted._version
        before = self.__dict__.get("_ready")
        if before is None or before[0] is not now[0] or before[1] != now[1]:
            before = self.__dict__["_ready"] = (*now, bool(self.fitted))
        return before[2]

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the remembered answer of :meth:`is_ready`: a copy reads its own buffers."""
        return {name: value for name, value in self.__dict__.items() if name != "_ready"}

    def usual(self, weight: Tensor | None) -> Usual:
        """Return what is usual on ordinary data; ``weight`` is that of the network's last linear layer."""
        b: Any = self
        return Usual(b.usual_variances, b.usual_last, b.ceiling, self.constants().least, self.claims(weight))

    def claims(self, weight: Tensor | None) -> Tensor | None:
        """Return the directions that classes claim; None where no part needs them. They follow from the last weight."""
        if weight is None or UNCLAIMED not in self.task_parts:
            return None
        head: nn.Module | None = self.__dict__["head"]
        sources: list[Tensor] = [weight]
        if head is not None and not isinstance(weight, nn.Parameter):
            # A parametrised layer makes another weight tensor each time it is asked: its own tensors tell about
            # changes.
            sources = [*head.parameters(), *head.buffers()]
        return self._claims.get(sources, lambda: Claims(claims_of(weight))).matrix

    def constants(self) -> Constants:
        """Return what follows from the buffers. It is made anew only when these change, see :class:`Derived`."""
        return self._derived.get([*self._buffers.values()], self._make_constants)  # type: ignore[list-item]

    def _make_constants(self) -> Constants:
        b: Any = self
        parts, places, changed = len(self.names), len(b.bounds), self.names.index(CHANGED)
        wide = torch.float32 if b.centre.device.type == "mps" else torch.float64  # which MPS does not have
        share = (1 / (MEMBERS * b.spread.to(wide))).unsqueeze(2)  # of each member
        shift, low, high = b.centre.new_zeros(3, 4, parts + places)
        infinite = torch.finfo(low.dtype).max
        low[FOR_MEMBERS, :parts], high[FOR_MEMBERS, :parts] = -CUT, CUT
        low[FOR_ANCHOR, :parts], high[FOR_ANCHOR, :parts] = LOWEST, infinite
        shift[FOR_DESTROYED, :parts], high[FOR_DESTROYED, :parts] = b.readable, infinite
        low[FOR_LIMITS, :parts] = high[FOR_LIMITS, :parts] = 1
        shift[FOR_LIMITS, changed], low[FOR_LIMITS, changed] = b.familiar, 0
        high[FOR_LIMITS, parts:] = LARGEST
        weight = torch.zeros_like(low, dtype=wide)
        weight[FOR_MEMBERS, :parts] = (b.linear * share).sum((0, 2))
        weight[FOR_ANCHOR, :parts] = b.anchor
        weight[FOR_DESTROYED, :parts] = b.readable < NEVER / 2
        weight[FOR_LIMITS, self.names.index(DESTROYED)] = -(b.mean * share[..., 0]).sum()
        return Constants(
            torch.cat([b.centre, b.bounds]),
            torch.cat([b.unit, torch.ones_like(b.bounds)]),
            shift, low, high, weight.flatten().to(low),
            b.inner.transpose(0, 1).flatten(1).clone(), b.offset.flatten().clone(), (b.outer * share).flatten().to(low),
            1e-3 * b.usual_last.norm().clamp_min(1e-9),
        )  # fmt: skip

    def raw_parts(self, evidence: Evidence, visible: Tensor | None = None) -> Tensor:
        """Return the parts in units of their own, [B, parts].

        visible  the numbers of the classes that are not hidden; None: all
        """
        return torch.cat(self._columns(evidence, visible), dim=1)

    def _columns(self, evidence: Evidence, visible: Tensor | None = None) -> list[Tensor]:
        """Return what :meth:`raw_parts` joins, each [B, some parts]."""
        columns = [self.task.parts(evidence, self.usual(evidence.weight), visible), evidence.variances, evidence.kinds]
        if evidence.classes is not None:
            classes = evidence.classes if visible is None else evidence.classes[:, :, visible]
            columns.append(classes[:, :, 0] if classes.shape[2] == 1 else classes.amin(2))
        if self.direction is not None:
            assert evidence.last is not None
            columns.append(self.direction(direction(evidence.last))[:, None])
        return columns

    def in_units(self, raw: Tensor) -> Tensor:
        """Return the parts in units of what is usual, [B, parts]."""
        return ((raw - self.centre) / self.unit).nan_to_num(nan=CUT)  # type: ignore[operator]

    def members(self, x: Tensor) -> Tensor:
        """Return what each member says about parts in units, not standardised, [members, B]."""
        b: Any = self
        return member_scores(x.clamp(-CUT, CUT), b.linear, b.inner, b.offset, b.outer)

    def judge(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        """Return three things about each input; none of it is computed in half precision:

        * the score, [B]
        * its parts in units of what is usual, [B, parts]
        * the share of the attached prediction in :attr:`Prediction.probs`, [B]: 0 up to ``familiar`` units of "looks
          changed", ``trust`` from one unit more on, see :mod:`abnn.train.combine.trust`
        """
        with torch.autocast(evidence.plain.device.type, enabled=False):
            constants, parts = self.constants(), len(self.names)
            raw = torch.cat([*self._columns(evidence), evidence.variances], dim=1)
            x = ((raw - constants.centre) / constants.unit).nan_to_num(nan=CUT)
            rows = (x[:, None] - constants.shift).clamp(constants.low, constants.high)
            hidden = torch.addmm(constants.offset, rows[:, FOR_MEMBERS, :parts], constants.inner).tanh()
            near = rows.flatten(1) @ constants.weight + hidden @ constants.outer  # all but T
            far = rows[:, FOR_LIMITS, parts:].amax(1).expm1()  # T / 10
            share = rows[:, FOR_LIMITS, self.names.index(CHANGED)] * self.trust  # type: ignore[operator]
            return near.add(far, alpha=STEEPNESS), x[:, :parts], share


@score("combined", statistics=True)
def _combined(prediction: Any) -> Tensor:
    return prediction.combined


@score("failures", statistics=True, about=("classes", "labels"))
def _failures(prediction: Any) -> Tensor:
    """Return the combined score with small odds counting more.

    It is for whoever asks "is this prediction wrong?" of ordinary, changed and unknown inputs alike.
    """
    return prediction.combined + WEIGHT_OF_ODDS * prediction.parts["odds"].clamp(-CUT, CUT)


@score("energy", statistics=True, about=("classes", "labels"))
def _energy(prediction: Any) -> Tensor:
    return prediction.parts["energy"]


@score("distance", statistics=True)
def _distance(prediction: Any) -> Tensor:
    """Return the mean of ln v over all places, in units of what is usual."""
    return torch.stack([part for name, part in prediction.parts.items() if name.startswith("distance at ")]).mean(0)
