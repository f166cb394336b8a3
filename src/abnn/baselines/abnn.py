"""Attachments: small Bayesian modules beside the blocks of a network, taught with outliers.

    default   the plain network is trained, then frozen; bounded attachments learn to be uncertain on outliers and to say
              what it says otherwise; score: what held-out data show to count
    paper     Algorithm 1 of "Be Bayesian by Attachments to Catch More Uncertainty", taken literally; score 1 - max_k p_k
    authors   what the authors' code does: a shared chain of Bayesian blocks, 295,936 numbers on their network

The forms of the losses are in :mod:`abnn.tasks.classification`, the three steps in :mod:`abnn.train.steps`. "reference" is "default".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from torch import Tensor, nn

from abnn.attached import Attached, attach
from abnn.baselines.base import AUTHORS_NOISE, Method, Run, Stage
from abnn.baselines.options import check_choice, check_positive, check_share, one_of, option
from abnn.config import PRESETS, AttachConfig, FitConfig, Objective, preset
from abnn.errors import InputError, explain
from abnn.model.views import check_number
from abnn.outliers import DEFAULT
from abnn.scores import SCORES
from abnn.train.combine import learn_score
from abnn.train.hold_out import hold_out
from abnn.train.knowledge import warn_if_lost
from abnn.train.optimizers import OPTIMIZERS, SCHEDULES, make_optimizer
from abnn.train.steps import Steps

AUTHORS = PRESETS["authors"]
JOINT: dict[str, Any] = {"pretrain": 0.0, "lr": AUTHORS.backbone_lr, "optimizer": "adam", "kaiming": False}
JOINT |= {"attachment_lr": AUTHORS.lr, "attachment_schedule": AUTHORS.schedule, "outliers": AUTHORS_NOISE}
JOINT |= {"score": "max-probability"}
"""What "paper" and "authors" share: backbone and attachments are trained together, from the beginning."""


@dataclass(frozen=True, kw_only=True)
class Attachments(Method):
    """lr, optimizer and schedule are the backbone's. Not frozen, it learns with the attachments, by their schedule."""

    name: ClassVar[str] = "abnn"
    variants: ClassVar[dict[str, dict[str, Any]]] = {
        "reference": {},
        "default": {},
        "paper": {"preset": "paper", **JOINT},
        "authors": {"preset": "authors", **JOINT},
    }
    random: ClassVar[bool] = True
    uses_outliers: ClassVar[str] = "may"

    score: str = "combined"
    preset: str = option("default", one_of(PRESETS))
    pretrain: float = option(0.75, check_share)  # of all epochs, for the plain network alone; 0: it is trained already
    attachment_lr: float = option(PRESETS["default"].lr, check_positive)
    attachment_optimizer: str = option("adam", one_of(OPTIMIZERS))
    attachment_schedule: str = option(PRESETS["default"].schedule, one_of(SCHEDULES))
    outliers: Any = DEFAULT
    objective: dict[str, Any] = field(default_factory=dict)  # changed fields of the preset's abnn.config.Objective
    attach: dict[str, Any] = field(default_factory=dict)  # changes of what abnn.attached.attach is told
    freeze: bool | None = None  # whether the backbone stays as it is while attachments learn; None: as the preset says
    views: int | None = None  # of an image that a prediction looks at; None: what attach() chooses

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.objective:
            check_choice("objective of method 'abnn'", name, [each.name for each in fields(Objective)])
        assert self.goal  # wrong values are errors now, not after the backbone was trained
        if self.views is not None:
            check_number(self.views)
        if not isinstance(self.freeze, bool | None):
            raise InputError(explain("freeze", repr(self.freeze), "True, False or None", "None: what the preset says."))
        if self.frozen and self.goal.outliers_update == "all":
            raise InputError(explain("freeze", self.freeze, "False with outliers_update='all'", "Set freeze=False."))

    @property
    def goal(self) -> Objective:
        """The form of the losses."""
        changes = {name: tuple(value) if isinstance(value, list) else value for name, value in self.objective.items()}
        return preset(self.preset, **changes).objective

    @property
    def frozen(self) -> bool:
        return preset(self.preset).freeze_backbone if self.freeze is None else self.freeze

    @property
    def judges(self) -> bool:
        """Whether the combined score is learnt in the end."""
        return preset(self.preset).score == "combined" and self.attach.get("kind", "bounded") == "bounded"

    @property
    def scores(self) -> tuple[str, ...]:
        every = (score.name for score in SCORES.values() if "classes" in score.about)
        return tuple(every) if self.judges else super().scores

    def to_config(self) -> dict[str, Any]:
        config = super().to_config()
        return {name: value for name, value in config.items() if value is not None or name not in ("freeze", "views")}

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> Attached:
        options = {"views": self.views, **self.attach}
        own = {name: options.pop(name) for name in ("width", "share", "prior", "init", "views") if name in options}
        return attach(make_backbone(), example, preset=self.preset, config=AttachConfig(**own), **options)

    def hold_out(self, loader: Any, seed: int) -> tuple[Any, Iterable[Any] | None]:
        return hold_out(loader, FitConfig.hold_out, seed) if self.judges else (loader, None)

    def stages(self, run: Run) -> list[Stage]:
        model: Attached = run.network
        first = self.pretraining(run, "backbone", model.backbone, self.pretrain)

        def attachments() -> Steps:
            parts = (parameter for _, parameter in model.attachment_parameters())
            optimizers = {"attachments": make_optimizer(self.attachment_optimizer, parts, self.attachment_lr)}
            if not self.frozen:
                optimizers["backbone"] = self.make_optimizer(model.learning_backbone_parameters())
            return Steps(model, self.goal, run.outliers, run.fabric, optimizers)

        return [first, Stage("attachments", run.epochs - first.epochs, attachments, self.attachment_schedule)]

    def finish(self, run: Run) -> None:
        run.network.eval()
        learn_score(run.network, run.batches.once, run.held_out, run.outliers, run.fabric, run.batches.seed)
        if self.frozen:
            warn_if_lost(run.network, run.batches.once())
