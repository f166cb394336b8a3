"""What the attachments are taught: three terms, and the presets that choose among their forms.

With z_s the logits of draw s and p = 1/S sum_s softmax(z_s) the mean prediction, one iteration has three steps:

    1. backbone (omega_1), unless frozen      minimise the ID loss
    2. attachments (omega_2), ID data         minimise the ID loss + kl_weight KL[q || prior]
    3. attachments (omega_2), outliers        minimise sign * alpha (outlier loss + kl_weight KL), sign -1 to maximise

Or all at once ("together"): one update by the sum of 2 and 3, also of a backbone that is not frozen. With a step of its own, which
knows nothing of outliers, a backbone worked against the attachments of the default, and the network lost what it knew.
Losses are averages over the batch. "mean" losses look at the mean prediction p, "draws" losses average over the draws.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.bayes.layers import Init
from abnn.bayes.priors import Gaussian
from abnn.errors import InputError, explain, unknown
from abnn.model.attachments import AUTHORS_INIT

ID_LOSSES = ("mean", "draws")
OUTLIER_LOSSES = ("mean", "draws", "bce")
TARGETS = ("graded", "uniform", "random")


def log_mean_prediction(draw_logits: Tensor) -> Tensor:
    """ln p_k = ln 1/S sum_s softmax(z_s)_k, [B, K], from [S, B, K]."""
    return draw_logits.log_softmax(2).logsumexp(0) - math.log(draw_logits.shape[0])


def mean_cross_entropy(draw_logits: Tensor, target: Tensor) -> Tensor:
    """- sum_k target_k ln p_k of the mean prediction, averaged over the batch."""
    return -(target * log_mean_prediction(draw_logits)).sum(1).mean()


def draw_cross_entropy(draw_logits: Tensor, target: Tensor) -> Tensor:
    """- 1/S sum_s sum_k target_k ln softmax(z_s)_k, averaged over the batch."""
    return -(target * draw_logits.log_softmax(2)).sum(2).mean()


def draw_bce(draw_logits: Tensor, target: Tensor) -> Tensor:
    """K independent sigmoids against the target, averaged over draws, batch and classes (the authors' outlier loss)."""
    return F.binary_cross_entropy_with_logits(draw_logits, target.expand_as(draw_logits))


def graded_target(y: Tensor, severity: Tensor, classes: int) -> Tensor:
    """(1 - t) one-hot(y) + t / K: certainty fades with severity t."""
    t = severity[:, None].float()
    return (1 - t) * F.one_hot(y, classes) + t / classes


@dataclass(frozen=True)
class Objective:
    """The form of the three terms.

    id_loss            "mean" or "draws"
    outlier_loss       "mean", "draws" or "bce"
    target             of the outlier loss: "graded" by severity, "uniform" 1/K, "random" U(0, 1) per class (ablation d)
    maximise           whether step 3 maximises its loss (the paper) or minimises it (ablation e, and the default)
    alpha              weight of step 3
    kl_weight          of KL per input; "batch": 1 / batch size, Algorithm 1 as printed
    outlier_kl         whether step 3 has a KL term of its own
    sampled_kl         Monte Carlo KL over the held draws instead of the closed form
    draws              of steps 1, 2, 3
    together           steps 2 and 3 as one update, of the backbone as well unless frozen; there is no step 1 then
    update_per_draw    step 1 as one update for each draw, Algorithm 1 as printed
    keep_gradient      step 1 leaves its gradient in the update of step 2, as in the authors' code
    outliers_update    what step 3 updates: "attachments", or "all" (ablation c, together with kind="replace")
    """

    id_loss: str = "mean"
    outlier_loss: str = "mean"
    target: str = "graded"
    maximise: bool = False
    alpha: float = 1.0
    kl_weight: float | str = 1e-7
    outlier_kl: bool = False
    sampled_kl: bool = False
    draws: tuple[int, int, int] = (1, 4, 4)
    together: bool = True
    update_per_draw: bool = False
    keep_gradient: bool = False
    outliers_update: str = "attachments"

    def __post_init__(self) -> None:
        for name, accepted in (
            ("id_loss", ID_LOSSES),
            ("outlier_loss", OUTLIER_LOSSES),
            ("target", TARGETS),
            ("outliers_update", ("attachments", "all")),
        ):
            if getattr(self, name) not in accepted:
                raise unknown(name, getattr(self, name), accepted)
        if not (self.kl_weight == "batch" or (isinstance(self.kl_weight, float | int) and self.kl_weight >= 0)):
            raise InputError(explain("kl_weight", repr(self.kl_weight), "a number >= 0, or 'batch'"))
        if not 0 <= self.alpha < math.inf:
            raise InputError(explain("alpha", self.alpha, "a number >= 0", "Use maximise=True/False for the sign."))
        if not isinstance(self.draws, tuple) or len(self.draws) != 3 or any(draws < 1 for draws in self.draws):
            raise InputError(explain("draws", self.draws, "three numbers of at least 1, one for each step"))
        apart = (self.maximise, self.keep_gradient, self.update_per_draw, self.outliers_update == "all")
        if self.together and any(apart):
            which = "False with maximise, keep_gradient, update_per_draw or outliers_update='all'"
            raise InputError(explain("together", True, which, "Set it False."))

    def kl_factor(self, batch: int) -> float:
        return 1 / batch if self.kl_weight == "batch" else float(self.kl_weight)

    def id_term(self, draw_logits: Tensor, y: Tensor) -> Tensor:
        target = F.one_hot(y, draw_logits.shape[2]).to(draw_logits.dtype)
        loss = mean_cross_entropy if self.id_loss == "mean" else draw_cross_entropy
        return loss(draw_logits, target)

    def outlier_term(self, draw_logits: Tensor, y: Tensor, severity: Tensor, noise: torch.Generator | None) -> Tensor:
        """The outlier loss before sign and alpha."""
        classes = draw_logits.shape[2]
        if self.target == "graded":
            target = graded_target(y, severity, classes)
        elif self.target == "uniform":
            target = torch.full_like(draw_logits[0], 1 / classes)
        else:
            device = noise.device if noise is not None else draw_logits.device
            target = torch.rand(draw_logits.shape[1:], generator=noise, device=device).to(draw_logits)
        losses = {"mean": mean_cross_entropy, "draws": draw_cross_entropy, "bce": draw_bce}
        return losses[self.outlier_loss](draw_logits, target.to(draw_logits.dtype))

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Preset:
    """All settings that belong to one way of using the method; each can be overridden where it is used.

    lr, schedule  of the attachments. Adam's first steps all go the same way: without a warm-up they overwrite what a network
                  knows before they have learnt anything
    backbone_lr   of a backbone that is not frozen
    views         of an image that a prediction looks at, see :mod:`abnn.model.views`
    """

    attach: dict[str, Any] = field(default_factory=dict)
    objective: Objective = field(default_factory=Objective)
    outliers: str = "auto"
    outlier_options: dict[str, Any] = field(default_factory=dict)
    freeze_backbone: bool = True
    score: str = "gated"
    lr: float = 3e-3
    schedule: str = "cycle"
    backbone_lr: float = 1e-3
    views: int = 5

    def gathers(self, frozen: bool) -> bool:
        """Whether statistics of features are gathered in the end: what is frozen can have them, and the
        score may need them."""
        return frozen or self.score == "gated"


# x + 16 N(0, 1) with one noise map for all channels, not clipped, always of full severity.
AUTHORS_NOISE_OPTIONS = {"scale": 16.0, "units": "raw", "shared_channels": True, "clip": False, "severity": 1.0}

PRESETS = {
    # Ours: a trained, frozen backbone; the mean prediction on outliers follows their severity.
    "default": Preset(),
    # Algorithm 1 and the text around it, taken literally.
    "paper": Preset(
        attach={"kind": "chain", "share": False, "prior": Gaussian(1.0), "init": Init(mean_std=0.0, sigma=1.0)},
        objective=Objective(
            id_loss="draws",
            outlier_loss="draws",
            target="uniform",
            maximise=True,
            alpha=0.95,
            kl_weight="batch",
            outlier_kl=True,
            sampled_kl=True,
            draws=(5, 5, 5),
            together=False,
            update_per_draw=True,
        ),
        outliers="noise",
        outlier_options=AUTHORS_NOISE_OPTIONS,
        freeze_backbone=False,
        score="max-probability",
        lr=1e-3,
        schedule="steps",
        backbone_lr=1e-3,
        views=1,
    ),
    # What the authors' code does.
    "authors": Preset(
        attach={
            "kind": "chain",
            "share": True,
            "prior": Gaussian(0.1),
            "init": AUTHORS_INIT,
        },
        objective=Objective(
            id_loss="draws",
            outlier_loss="bce",
            target="uniform",
            maximise=True,
            alpha=1.0,
            kl_weight=1 / 50_000,
            outlier_kl=True,
            sampled_kl=True,
            draws=(1, 3, 3),
            together=False,
            keep_gradient=True,
        ),
        outliers="noise",
        outlier_options=AUTHORS_NOISE_OPTIONS,
        freeze_backbone=False,
        score="max-probability",
        lr=1e-3,
        schedule="steps",
        backbone_lr=1e-3,
        views=1,
    ),
}


def preset(name: str, **changes: Any) -> Preset:
    """A preset by name, with some fields of its objective changed."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    chosen = PRESETS[name]
    return replace(chosen, objective=replace(chosen.objective, **changes)) if changes else chosen
