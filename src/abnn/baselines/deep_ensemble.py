"""Deep ensemble: several networks from different initial weights, averaged.

    train     every member m by itself:  minimise  - 1/B sum_b ln p_m(y_b | x_b)
    predict   p = 1/M sum_m p_m
    score     1 - max_k p_k

Lakshminarayanan, Pritzel and Blundell 2017, "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles"
(arXiv:1612.01474), without adversarial training. Members are trained side by side on the same batches, so that they differ
in their initial weights. On an accelerator they run as one network with stacked weights where the backbone allows it; on
a CPU one after another is faster. Both give the members that training each alone would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from abnn.baselines.base import Method, Run
from abnn.baselines.options import check_count, option
from abnn.errors import InputError, explain


class Ensemble(nn.Module):
    """All members' logits, [M, B, K]; ``stacked`` as one network with stacked weights, else one after another."""

    def __init__(self, members: list[nn.Module], stacked: bool | None) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.stacked = stacked
        self.stackable = not any(True for _ in members[0].buffers())  # running statistics cannot be updated in a stack

    def forward(self, x: Tensor) -> Tensor:
        if not self.stackable or not (x.device.type != "cpu" if self.stacked is None else self.stacked):
            return torch.stack([member(x) for member in self.members])
        parameters = [dict(member.named_parameters()) for member in self.members]
        stack = {name: torch.stack([each[name] for each in parameters]) for name in parameters[0]}
        first = self.members[0]
        # "different": dropout in each member is its own, as in separate training.
        return vmap(lambda weights: functional_call(first, weights, (x,)), randomness="different")(stack)


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Method):
    """members: how many; stacked: run them as one network (True), one after another (False), or as the device likes."""

    name: ClassVar[str] = "deep-ensemble"
    title: ClassVar[str] = "training members"
    random: ClassVar[bool] = True

    members: int = option(5, check_count)
    stacked: bool | None = None

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> Ensemble:
        members = [make_backbone() for _ in range(self.members)]
        first = [torch.cat([value.flatten() for value in member.parameters()]) for member in members]
        if any(torch.equal(first[0], other) for other in first[1:]):
            fix = "Pass a name such as 'paper-resnet', or a function that builds a network with new random weights."
            equal = "something that makes networks with equal weights"
            raise InputError(explain("backbone", equal, "different initial weights for every member", fix))
        return Ensemble(members, self.stacked)

    def losses(self, run: Run, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {f"member_{number}": F.cross_entropy(member, y) for number, member in enumerate(run.logits(x))}

    def draw_logits(self, network: Ensemble, x: Tensor, draws: int, seed: int) -> Tensor:
        """Return one draw for each member, whatever ``draws`` says."""
        return network(x)
