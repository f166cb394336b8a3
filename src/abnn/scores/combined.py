"""One score of everything that a pass says about an input; what counts how much was learnt from the network's own data.

The parts (energies, odds and entropies with and without attachments, ln v and the nearest class at every place, what the witness
says; see the tasks, :mod:`abnn.bayes.closed_form` and :mod:`abnn.bayes.witness`) are measured in units of what is usual: x = (part -
median) / (q_95 - q_5) * 3.3 on held-out ordinary inputs, cut to +-8. Then

    score = mean_m s_m(x) + anchor' x + D + T,    s_m(x) = w_m' x + b_m' tanh(A_m x + a_m), each standardised on ordinary inputs,

    D = max(0, x_destroyed - q),    T = 10 max(0, max_k v_k / Q_k - 1).

The small networks s_m are fitted to pairs of inputs of which one should be more uncertain, see :mod:`abnn.train.combine`. The
network's energies always count, cut below -100 only: ``anchor`` says which of them and how much. D is zero wherever 95 % of the inputs
lie that are changed but can be read: what looks more destroyed than these counts by that much. T is zero wherever ordinary inputs are, and
grows without bound outside: with Q_k the largest variance of held-out inputs, changed ones among them, doubled; for tables, whose
inputs have no other bounds, the 95 % quantile of ordinary ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.witness import KINDS
from abnn.model.evidence import Evidence
from abnn.scores.registry import score
from abnn.tasks.base import Task, Usual

CHANGED, DESTROYED = "looks changed", "looks destroyed"
MEMBERS, HIDDEN = 8, 16
CUT = 8.0
STEEPNESS = 10.0
LARGEST = 84.0  # of ln v_k / Q_k: float32 ends at 88
NEVER = 6e4  # units, which half precision can hold
LOWEST = -100.0  # of energies: far away those of ReLU networks fall as fast as inputs grow


def say(x: Tensor, linear: Tensor, inner: Tensor, offset: Tensor, outer: Tensor) -> Tensor:
    """s_m(x) of every small network, [members, B]; ``x``: [B, parts], or [members, B, parts] with inputs of their own."""
    hidden = torch.tanh(torch.matmul(x, inner) + offset)
    return (torch.matmul(x, linear) + torch.matmul(hidden, outer)).squeeze(-1)


class Combined(nn.Module):
    """The learnt score of one network: from evidence to one number for each input, and to its parts.

    places   where variances are read, see AttachedNetwork.places
    readout  how many features go into the network's last linear layer; None: it has none
    classes  whether these places tell classes apart
    """

    fitted: Tensor

    def __init__(self, task: Task, places: Sequence[str], readout: int | None, classes: bool = False) -> None:
        super().__init__()
        self.task = task
        self.own = task.part_names(readout is not None)
        self.names = [*self.own, *(f"distance at {place}" for place in places), *(f"looks {kind}" for kind in KINDS)]
        self.names += [f"nearest class at {place}" for place in places] if classes else []
        parts = len(self.names)
        sizes = {
            "usual_variances": (len(places),), "usual_last": (readout or 0,), "ceiling": (),
            "centre": (parts,), "unit": (parts,), "bounds": (len(places),), "anchor": (parts,), "readable": (parts,),
            "linear": (MEMBERS, parts, 1), "inner": (MEMBERS, parts, HIDDEN), "offset": (MEMBERS, 1, HIDDEN),
            "outer": (MEMBERS, HIDDEN, 1), "mean": (MEMBERS, 1), "spread": (MEMBERS, 1), "familiar": (),
        }  # fmt: skip
        for name, size in sizes.items():
            self.register_buffer(name, torch.zeros(size))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self.widths = task.spread

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

    @property
    def usual(self) -> Usual:
        return Usual(self.usual_variances, self.usual_last, self.ceiling)  # type: ignore[arg-type]

    def raw_parts(self, evidence: Evidence, visible: Tensor | None = None) -> Tensor:
        """[B, parts], in units of their own."""
        parts = [self.task.parts(evidence, self.usual, visible), evidence.variances, evidence.kinds]
        if evidence.classes is not None:
            parts.append((evidence.classes if visible is None else evidence.classes[:, :, visible]).amin(2))
        return torch.cat(parts, dim=1)

    def in_units(self, raw: Tensor) -> Tensor:
        """In units of what is usual, [B, parts]."""
        return ((raw - self.centre) / self.unit).nan_to_num(nan=CUT)  # type: ignore[operator]

    def members(self, x: Tensor) -> Tensor:
        """What each small network says, not standardised, [members, B]."""
        return say(x.clamp(-CUT, CUT), self.linear, self.inner, self.offset, self.outer)  # type: ignore[arg-type]

    def far(self, variances: Tensor) -> Tensor:
        """T of the module's formula."""
        beyond = (variances - self.bounds).amax(1).clamp(max=LARGEST)  # type: ignore[operator]
        return STEEPNESS * beyond.clamp_min(0).expm1()

    def destroyed(self, x: Tensor) -> Tensor:
        """D of the module's formula, [B]; ``readable`` has q at the place of its part, and :data:`NEVER` at all others."""
        return (x - self.readable).clamp_min(0).sum(1)  # type: ignore[operator]

    def share(self, x: Tensor) -> Tensor:
        """How much attachments count in the prediction for each input, 0 to 1, [B], see :attr:`Prediction.probs`.

        Nothing up to ``familiar`` units of how changed ordinary inputs look, all from one unit more on.
        """
        return (x[:, self.names.index(CHANGED)] - self.familiar).clamp(0, 1)  # type: ignore[operator]

    def forward(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """The score of each input, [B], and its parts in units of what is usual, [B, parts]; never in half precision."""
        with torch.autocast(evidence.plain.device.type, enabled=False):
            x = self.in_units(self.raw_parts(evidence))
            learnt = ((self.members(x) - self.mean) / self.spread).mean(0)  # type: ignore[operator]
            energies = x.clamp_min(LOWEST) @ self.anchor  # type: ignore[operator]
            return learnt + energies + self.destroyed(x) + self.far(evidence.variances), x


@score("combined", statistics=True)
def _combined(prediction: Any) -> Tensor:
    return prediction.combined


@score("energy", statistics=True, about=("classes", "labels"))
def _energy(prediction: Any) -> Tensor:
    return prediction.parts["energy"]


@score("distance", statistics=True)
def _distance(prediction: Any) -> Tensor:
    """The mean of ln v over all places, in units of what is usual."""
    return torch.stack([part for name, part in prediction.parts.items() if name.startswith("distance at ")]).mean(0)
