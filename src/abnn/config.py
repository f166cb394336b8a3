"""Settings as objects: how attachments are built, what they are taught, and the presets that choose both.

Every default of the method is named here, once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import torch

from abnn.bayes.layers import Init
from abnn.bayes.priors import Gaussian, Prior
from abnn.decisions import Costs, TriageConfig  # noqa: F401 - settings, like those below
from abnn.errors import InputError, explain, unknown

ATTACHMENT_KINDS = ("bounded", "chain", "replace")
AUTHORS_INIT = Init(mean_std=0.1, sigma=math.log1p(math.exp(-6)), rho_std=0.1)
DEFAULT_TASK = "classification"
DRAWS = 10
"""Of predictions that are random, where nothing else is said."""


@dataclass(frozen=True)
class AttachConfig:
    """How attachments look, beyond their kind and places. None: what the preset says.

    width  bounded: features in the middle of an attachment. None: up to 32, as many as the budget pays for
    budget how many numbers the attachments may learn; None: for bounded ones 5 % of the backbone's weights. They get as wide
           as it pays for, then go to fewer blocks
    share  chain: one Bayesian block serves all but the first place, with noise of its own at each
    prior  prior of every Bayesian weight
    init   where the posterior starts
    views  how many views of an image predictions look at, see :mod:`abnn.model.views`. None: what the preset says
    task   what the network's output means: a name in :data:`abnn.tasks.TASKS`, or a task
    """

    width: int | None = None
    budget: int | None = None
    share: bool | None = None
    prior: Prior | None = None
    init: Init | None = None
    views: int | None = None
    task: Any = DEFAULT_TASK


@dataclass(frozen=True)
class Spec:
    """How attachments are built; everything that is needed to build them again.

    kind     "bounded": a small addition to a block's output that can never outgrow it, see :mod:`abnn.model.bounded`.
             "chain": the authors' side stream of residual Bayesian blocks beside the backbone. "replace": no
             attachment; a residual Bayesian block takes the place of each block (Bayes by backprop, ablation c).
    width    bounded: features in the middle. None: 32.
    init     where the posterior starts; None: bounded attachments add exactly nothing, others start as the authors' do.
    share and prior as in :class:`AttachConfig`.
    """

    kind: str = "bounded"
    width: int | None = None
    share: bool | None = None
    prior: Prior = Gaussian(0.1)
    init: Init | None = None

    def __post_init__(self) -> None:
        if self.kind not in ATTACHMENT_KINDS:
            raise unknown("kind", self.kind, ATTACHMENT_KINDS)
        if self.width is not None and self.width < 1:
            raise InputError(explain("width", self.width, "a positive number of channels"))
        if self.kind in ("chain", "replace") and self.width is not None:
            raise InputError(explain("width", self.width, f"None for kind={self.kind!r}, as wide as the blocks are"))
        if self.kind != "chain" and self.share is not None:
            raise InputError(explain("share", self.share, f"None for kind={self.kind!r}; only chains are shared"))


@dataclass(frozen=True)
class Objective:
    """The form of the three terms that attachments are taught by; the formulas are the task's.

    id_loss            "mean" or "draws"
    outlier_loss       "mean", "draws" or "bce"
    target             of the outlier loss: "graded" by severity, "uniform" 1/K, "random" U(0, 1) per class (ablation d)
    maximise           whether step 3 maximises its loss (the paper) or minimises it (ablation e, and the default)
    alpha              weight of step 3
    kl_weight          of KL per input; "batch": 1 / batch size, Algorithm 1 as printed
    outlier_kl         whether step 3 has a KL term of its own
    sampled_kl         Monte Carlo KL over the held draws instead of the closed form
    draws              of steps 1, 2, 3; 0: mean weights
    distil             of the target of ordinary data, the share that is the backbone's own prediction; the rest is the label
    hide               weight of a loss in which half of the classes are hidden: over the others, inputs of a hidden class
                       are to be uncertain
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
    kl_weight: float | str = 0.0
    outlier_kl: bool = False
    sampled_kl: bool = False
    draws: tuple[int, int, int] = (0, 0, 0)
    distil: float = 0.5
    hide: float = 0.3
    together: bool = True
    update_per_draw: bool = False
    keep_gradient: bool = False
    outliers_update: str = "attachments"

    def __post_init__(self) -> None:
        for name, accepted in (
            ("id_loss", ("mean", "draws")),
            ("outlier_loss", ("mean", "draws", "bce")),
            ("target", ("graded", "uniform", "random")),
            ("outliers_update", ("attachments", "all")),
        ):
            if getattr(self, name) not in accepted:
                raise unknown(name, getattr(self, name), accepted)
        if not (self.kl_weight == "batch" or (isinstance(self.kl_weight, float | int) and self.kl_weight >= 0)):
            raise InputError(explain("kl_weight", repr(self.kl_weight), "a number >= 0, or 'batch'"))
        if not 0 <= self.alpha < math.inf:
            raise InputError(explain("alpha", self.alpha, "a number >= 0", "Use maximise=True/False for the sign."))
        if not isinstance(self.draws, tuple) or len(self.draws) != 3 or any(draws < 0 for draws in self.draws):
            raise InputError(explain("draws", self.draws, "three numbers of at least 0, one for each step"))
        for name in ("distil", "hide"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(explain(name, getattr(self, name), "a number from 0 to 1"))
        apart = (self.maximise, self.keep_gradient, self.update_per_draw, self.outliers_update == "all")
        if self.together and any(apart):
            accepted_with = "False with maximise, keep_gradient, update_per_draw or outliers_update='all'"
            raise InputError(explain("together", True, accepted_with, "Set it False."))

    def kl_factor(self, batch: int) -> float:
        return 1 / batch if self.kl_weight == "batch" else float(self.kl_weight)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Preset:
    """All settings that belong to one way of using the method; each can be overridden where it is used.

    attach           fields of :class:`Spec`
    outliers         a name in :mod:`abnn.outliers`; ``outlier_options`` go with it
    score            of predictions; "combined" once a fit has learnt what counts, "entropy" until then
    draws            of a prediction; 0: mean weights
    lr, schedule     of the attachments
    backbone_lr      of a backbone that is not frozen
    views            of an image that a prediction looks at, see :mod:`abnn.model.views`
    """

    attach: dict[str, Any] = field(default_factory=dict)
    objective: Objective = field(default_factory=Objective)
    outliers: str = "auto"
    outlier_options: dict[str, Any] = field(default_factory=dict)
    freeze_backbone: bool = True
    score: str = "combined"
    draws: int = 0
    lr: float = 1e-3
    schedule: str = "cycle"
    backbone_lr: float = 1e-3
    views: int = 1

    def spec(self, kind: str | None, config: AttachConfig) -> Spec:
        """Return how attachments are built; settings of another kind than the preset's do not apply."""
        settings = dict(self.attach)
        if kind is not None and kind != settings.get("kind", Spec.kind):
            settings = {name: value for name, value in settings.items() if name == "prior"}
        chosen = {"kind": kind, **{name: getattr(config, name) for name in ("width", "share", "prior", "init")}}
        return Spec(**{**settings, **{name: value for name, value in chosen.items() if value is not None}})


# x + 16 N(0, 1) with one noise map for all channels, not clipped, always of full severity.
AUTHORS_NOISE = {"scale": 16.0, "units": "raw", "shared_channels": True, "clip": False, "severity": 1.0}

_PAPER = Preset(
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
        distil=0.0,
        hide=0.0,
        together=False,
        update_per_draw=True,
    ),
    outliers="noise",
    outlier_options=AUTHORS_NOISE,
    freeze_backbone=False,
    score="max-probability",
    draws=DRAWS,
    schedule="steps",
)
PRESETS = {
    # Ours: a trained, frozen backbone; bounded attachments that hold on to its predictions; one pass.
    "default": Preset(),
    # Algorithm 1 and the text around it, taken literally.
    "paper": _PAPER,
    # What the authors' code does.
    "authors": replace(
        _PAPER,
        attach={"kind": "chain", "share": True, "prior": Gaussian(0.1), "init": AUTHORS_INIT},
        objective=replace(
            _PAPER.objective,
            outlier_loss="bce",
            alpha=1.0,
            kl_weight=1 / 50_000,
            draws=(1, 3, 3),
            update_per_draw=False,
            keep_gradient=True,
        ),
    ),
}


def preset(name: str, **changes: Any) -> Preset:
    """Return a preset by name, with some fields of its objective changed."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    chosen = PRESETS[name]
    return replace(chosen, objective=replace(chosen.objective, **changes)) if changes else chosen


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """Settings of :func:`abnn.fit`; None means what the model's preset says, where nothing else is written.

    freeze_backbone   whether the backbone stays as it is; if not, the default preset trains it by the same losses
    objective         the form of the losses
    backbone_lr       learning rate of a backbone that is not frozen
    optimizer         "adam", "adam-l2", "adamw", "sgd" or "nesterov", or a function of (parameters, lr=...) that returns one
    schedule          a name in abnn.train.optimizers.SCHEDULES, or a function from progress in [0, 1) to a factor of the rates
    value_range       (low, high) of the inputs, per channel or for all; None: as ``outliers`` were prepared, else measured
    hold_out          the share of the data that attachments do not see, at most 2,000 inputs: from it, and from outliers made
                      of it, follows what counts how much in the score
    precision         "32-true" or "bf16-mixed"
    compile           compile the network for the time of training, see :mod:`abnn.predict.compiling`
    accelerator       "auto", "cpu", "cuda" or "mps"
    devices           how many, in each of ``num_nodes`` machines; start several with torchrun
    checkpoint_every  steps between checkpoints, besides the one after every epoch; None: no others
    log               "csv" and/or "tensorboard", written under ``log_dir``; "mlflow", to where MLflow is told to track
    """

    freeze_backbone: bool | None = None
    objective: Objective | None = None
    backbone_lr: float | None = None
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam"
    schedule: str | Callable[[float], float] | None = None
    value_range: tuple[Any, Any] | None = None
    hold_out: float = 0.2
    precision: str = "32-true"
    compile: bool = False
    accelerator: str = "auto"
    devices: int | str = 1
    num_nodes: int = 1
    checkpoint_every: int | None = None
    log: Sequence[str] | str = ()
    log_dir: str | Path = "runs"

    def __post_init__(self) -> None:
        check_rate("backbone_lr", self.backbone_lr)
        for name in ("freeze_backbone", "compile"):
            if getattr(self, name) not in (True, False, None):
                raise InputError(explain(name, repr(getattr(self, name)), "True, False or None"))
        if self.objective is not None and not isinstance(self.objective, Objective):
            fix = "abnn.preset(name).objective is that of a preset."
            raise InputError(explain("objective", repr(self.objective), "an abnn.Objective, or None", fix))
        if not isinstance(self.hold_out, Real) or not 0 <= self.hold_out <= 0.5:
            raise InputError(explain("hold_out", repr(self.hold_out), "a number from 0 to 0.5"))
        check_bounds(self.value_range)


def check_bounds(bounds: Any) -> None:
    """Raise an error for a range of values that is neither None nor a pair; what the pair holds, outliers check."""
    if bounds is not None and (not isinstance(bounds, tuple | list) or len(bounds) != 2):
        raise InputError(explain("value_range", repr(bounds), "(low, high), or None"))


def check_rate(argument: str, rate: Any) -> None:
    """Raise an error for a learning rate that is neither None nor a positive number."""
    if rate is not None and not (isinstance(rate, Real) and 0 < float(rate) < math.inf and rate is not True):
        raise InputError(explain(argument, repr(rate), "a positive number, or None for the preset's"))


DEFAULTS = FitConfig()
