"""WOODS: learns from unlabelled "wild" data, of which a share is outliers, under two constraints.

With s(x) an outlier logit (larger: more of an outlier) and l the loss of the outlier detector,

    minimise    E_wild[ l_out(s(x)) ]   subject to   E_id[ l_in(s(x)) ] <= cutoff   and   CE <= factor * CE before

Each constraint g <= 0 enters as an augmented Lagrangian term, with multiplier m and penalty b,

    m g + b/2 g^2  where  b g + m >= 0,  else  - m^2 / (2 b)

and after every epoch, with g over all training data: m <- m + dg/dm of that term, b <- 1.5 b if g > 0.

    reference   s = w (c - logsumexp(z)) / d + a, sigmoid losses l_out = sigmoid(-s), l_in = sigmoid(s), from a trained network,
                whose mean c and deviation d of logsumexp are measured first; score: energy, -logsumexp(z)
    authors     s from a second head, hinge losses l_out = relu(1 - s), l_in = relu(1 + s), from the beginning, CE in the
                loss and not constrained; score: 1 - max_k p_k, the second head is not used

Katz-Samuels, Nakhleh, Nowak and Li 2022, "Training OOD Detectors in their Natural Habitats" (arXiv:2202.03299). The first
half of every batch is labelled ID data, the other half wild: each input is replaced by an outlier with probability ``share``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines.base import AUTHORS_NOISE, Method, Minimise, Run, Stage, check_paper_resnet
from abnn.baselines.options import check_positive, check_share, one_of, option
from abnn.model.calls import evaluating
from abnn.networks.by_name import PaperResNet, group_norm
from abnn.predict import Prediction
from abnn.train.optimizers import SCHEDULES, Schedule, make_optimizer

TUNE_SCHEDULES: dict[str, Schedule] = {
    **SCHEDULES,
    "halving": lambda progress: 0.5 ** sum(progress >= bound for bound in (0.5, 0.75, 0.9)),
}


def lagrangian(g: Tensor, multiplier: Tensor | float, penalty: Tensor | float) -> Tensor:
    """The augmented Lagrangian term of the constraint g <= 0."""
    active = multiplier * g + 0.5 * penalty * g**2
    return torch.where(penalty * g + multiplier >= 0, active, -(multiplier**2) / (2 * penalty))


def update_constraint(g: float, multiplier: float, penalty: float, rate: float, growth: float) -> tuple[float, float]:
    """Multiplier and penalty after a look at the constraint: a step up the gradient of the term in the multiplier."""
    slope = g if penalty * g + multiplier >= 0 else -multiplier / penalty
    return multiplier + rate * slope, penalty * growth if g > 0 else penalty


class EnergyUnit(nn.Module):
    """A network and a logistic unit on its energy."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.weight, self.bias = nn.Parameter(torch.ones(())), nn.Parameter(torch.zeros(()))
        self.centre, self.spread = nn.Buffer(torch.zeros(())), nn.Buffer(torch.ones(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Class logits and the outlier logit."""
        logits = self.network(x).float()
        return logits, self.weight * (self.centre - logits.logsumexp(1)) / self.spread + self.bias

    @torch.no_grad()
    def measure(self, logsumexp: Tensor) -> None:
        """Put the unit where it can learn: at the energies of ID data."""
        self.centre.copy_(logsumexp.mean())
        self.spread.copy_(logsumexp.std().clamp_min(1e-6))


class SecondHead(nn.Module):
    """The paper's network with an outlier head on its last block: norm, ReLU, pool, linear; 193 numbers."""

    def __init__(self, network: PaperResNet) -> None:
        super().__init__()
        self.network = network
        width = network.head.in_features
        self.norm, self.linear = group_norm(width), nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        net = self.network
        features = net.blocks(net.stem(x))
        logits = net.head(F.relu(net.norm(features)).mean(dim=(2, 3)))
        return logits.float(), self.linear(F.relu(self.norm(features)).mean(dim=(2, 3))).float()[:, 0]


@dataclass(frozen=True, kw_only=True)
class Woods(Method):
    name: ClassVar[str] = "woods"
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "reference": {},
        "authors": {"form": "head", "pretrain": 0.0, "tune_schedule": "steps", "ce_factor": None}
        | {"outliers": AUTHORS_NOISE, "score": "max-probability"},
    }
    uses_outliers: ClassVar[str] = "must"

    score: str = "energy"
    form: str = option("energy", one_of(("energy", "head")))  # with the losses above
    pretrain: float = option(0.5, check_share)  # of all epochs, with lr, optimizer and schedule; 0: trained already
    tune_lr: float = option(1e-3, check_positive)  # of what follows, by Nesterov's momentum
    tune_schedule: str = option("halving", one_of(TUNE_SCHEDULES))
    share: float = option(0.1, check_positive)  # of outliers in the wild half
    cutoff: float = option(0.05, check_positive)  # what the ID loss of the detector may be
    ce_factor: float | None = option(2.0, check_positive, none=True)  # None: the cross-entropy is in the loss instead
    rate: float = option(1.0, check_positive)  # of the multipliers' steps
    growth: float = option(1.5, check_positive)  # of the penalties
    outliers: Any = "full"

    @property
    def scores(self) -> tuple[str, ...]:
        return (*super().scores, "energy", *(("ood-head",) if self.form == "head" else ()))

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> nn.Module:
        if self.form == "energy":
            return EnergyUnit(make_backbone())
        return SecondHead(check_paper_resnet(make_backbone(), "for form='head'; form='energy' takes any network"))

    def stages(self, run: Run) -> list[Stage]:
        first = self.pretraining(run, "pretrain", run.network.network, self.pretrain)
        schedule = TUNE_SCHEDULES[self.tune_schedule]
        return [first, Stage("wild", run.epochs - first.epochs, lambda: WildSteps(run, self), schedule)]

    def predict(self, network: nn.Module, x: Tensor, draws: int, seed: int) -> Prediction:
        logits, outlier = network(x)
        own = {"energy": -logits.logsumexp(1)} | ({"ood-head": outlier} if self.form == "head" else {})
        return Prediction(logits.softmax(1)[None], default=self.score, own=own)

    def detector_losses(self, outlier_logit: Tensor) -> tuple[Tensor, Tensor]:
        """(l_in, l_out) of every input."""
        if self.form == "energy":
            return torch.sigmoid(outlier_logit), torch.sigmoid(-outlier_logit)
        return F.relu(1 + outlier_logit), F.relu(1 - outlier_logit)


class WildSteps(Minimise):
    """One step on labelled and wild data; multipliers and penalties move between epochs."""

    def __init__(self, run: Run, method: Woods) -> None:
        optimizer = make_optimizer("nesterov", run.network.parameters(), method.tune_lr)
        super().__init__(run, self.wild_losses, optimizer, "training with wild data")
        self.method = method
        self.constraints = {"in": (0.0, 1.0), "ce": (0.0, 1.0)}  # multiplier and penalty of each
        self.ce_limit = float("inf")
        # What a step reads of these numbers lies on the device, where a captured step finds their current values.
        self.placed = torch.zeros(5, device=next(self.network.parameters()).device)
        self.place()

    def place(self) -> None:
        self.placed.copy_(torch.tensor([*self.constraints["in"], *self.constraints["ce"], self.ce_limit]))

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with self.run.fabric.autocast():
            return self.network(x)

    def wild_losses(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        half = max(1, len(x) // 2)
        wild, wild_y = x[half:], y[half:]
        logits, id_logit = self.outputs(x[:half])
        ce = F.cross_entropy(logits, y[:half])
        losses = {"in": self.term("in", self.method.detector_losses(id_logit)[0].mean() - self.method.cutoff)}
        losses["ce"] = ce if self.method.ce_factor is None else self.term("ce", ce - self.placed[4])
        if len(wild):
            outliers = self.run.make_outliers(wild, wild_y, generator).x
            place = x.device if generator is None else generator.device
            chosen = torch.rand(len(wild), generator=generator, device=place) < self.method.share
            wild = torch.where(chosen.to(x.device).view(-1, *[1] * (x.ndim - 1)), outliers, wild)
            with evaluating(self.network):  # outliers must not reach normalisation statistics
                losses["wild"] = self.method.detector_losses(self.outputs(wild)[1])[1].mean()
        return losses

    def term(self, name: str, g: Tensor) -> Tensor:
        at = {"in": 0, "ce": 2}[name]
        return lagrangian(g, self.placed[at], self.placed[at + 1])

    def begin_epoch(self, epoch: int, batches: Callable[[], Iterator[tuple[Tensor, Tensor]]]) -> None:
        """Before the first epoch, look at the network as it came; later, move the multipliers."""
        method = self.method
        ce, inside, logsumexp = self.look(batches())
        if epoch == 0:
            if isinstance(self.network, EnergyUnit):
                self.network.measure(logsumexp)
            if method.ce_factor is not None:
                self.ce_limit = method.ce_factor * ce
        else:
            values = {"in": inside - method.cutoff}
            if method.ce_factor is not None:
                values["ce"] = ce - self.ce_limit
            for name, g in values.items():
                self.constraints[name] = update_constraint(g, *self.constraints[name], method.rate, method.growth)
        self.place()

    @torch.no_grad()
    def look(self, batches: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, float, Tensor]:
        """Over all training data: cross-entropy, ID loss of the detector, and every logsumexp."""
        ce, inside, energies = [], [], []
        with evaluating(self.network):
            for x, y in batches:
                logits, outlier = self.outputs(x)
                ce.append(F.cross_entropy(logits, y, reduction="none"))
                inside.append(self.method.detector_losses(outlier)[0])
                energies.append(logits.logsumexp(1))
        return torch.cat(ce).mean().item(), torch.cat(inside).mean().item(), torch.cat(energies)

    def more(self) -> dict[str, Any]:
        return {"constraints": self.constraints, "ce_limit": self.ce_limit}

    def restore_more(self, more: dict[str, Any]) -> None:
        self.constraints, self.ce_limit = more["constraints"], more["ce_limit"]
        self.place()

    def end_epoch(self, epoch: int, means: dict[str, float]) -> dict[str, float]:
        return {f"multiplier_{name}": multiplier for name, (multiplier, _) in self.constraints.items()}
