"""What a method is: it builds a network, says how it is trained, and predicts.

A method is a frozen dataclass whose fields are its hyper-parameters, with the defaults of its reference. It has

    build(make_backbone, example)          the network, or networks, as one module that holds all that prediction needs
    stages(run)                            how it is trained: one or several stages of :mod:`abnn.train.loop`
    predict(network, x, draws, seed)       class probabilities of every draw, and scores that only this method can give

and may have ``finish(run)``, called after the last stage. ``variants`` names sets of changed hyper-parameters:
"reference" is the method as its own paper or code has it, "authors" as the authors of the attachments ran it.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from abnn import config
from abnn.attached import Attached
from abnn.errors import InputError, explain, unknown
from abnn.model.blocks import evaluating
from abnn.outliers import OutlierBatch, Outliers
from abnn.outliers.mixtures import CONTENT
from abnn.predict import Prediction
from abnn.scores import ONE_DRAW_SCORES, SAMPLE_SCORES
from abnn.train.batches import Batches
from abnn.train.optimizers import OPTIMIZERS, SCHEDULES, Schedule, make_optimizer
from abnn.train.trainable import Trainable

REGISTRY: dict[str, type[Method]] = {}
# x + 16 N(0, 1), one noise map for all channels, not clipped: the outliers of the authors' own runs.
AUTHORS_NOISE: dict[str, Any] = {"name": "noise", **config.AUTHORS_NOISE, "severity": [1.0, 1.0]}


@dataclass(frozen=True)
class Run:
    """What training can use: the network on its device, the data, and who makes the outliers."""

    network: nn.Module
    fabric: Any
    batches: Batches
    outliers: Outliers | None
    epochs: int
    size: int
    """The number of training inputs."""

    def logits(self, x: Tensor, network: nn.Module | None = None) -> Tensor:
        """The network's output in the run's precision, as float32."""
        with self.fabric.autocast():
            output = (network or self.network)(x)
        return output.float()

    def outlier_logits(self, x: Tensor, network: nn.Module | None = None) -> Tensor:
        """The same for outliers, which normalisation statistics must never see."""
        with evaluating(network or self.network):
            return self.logits(x, network)

    def make_outliers(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> OutlierBatch:
        assert self.outliers is not None
        return self.outliers(x, y, generator)


@dataclass(frozen=True)
class Stage:
    """One pass through :func:`abnn.train.loop.training`; what is trained is made when the stages before have ended."""

    name: str
    epochs: int
    make: Callable[[], Trainable]
    schedule: str | Schedule = "constant"


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Hyper-parameters that every method has.

    score      the score that predictions show first
    optimizer  "sgd" (momentum 0.9, weight decay 5e-4), "nesterov" (the same with Nesterov's momentum), "adam",
               "adam-l2" (weight decay 5e-4) or "adamw"
    schedule   of the learning rate: "steps" (a tenth after each quarter), "thirds", "fifths", "cosine", "cycle" or "constant"
    kaiming    how the paper's network starts when it is built by its name
    variant    which set of hyper-parameters these are
    """

    name: ClassVar[str] = ""
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}, "authors": {}}
    own_scores: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = False
    """Whether a prediction has several draws."""
    uses_outliers: ClassVar[str] = "never"
    """"never", "may" or "must" be given."""
    optimizers: ClassVar[tuple[str, ...]] = tuple(OPTIMIZERS)
    """What ``optimizer`` may be."""

    variant: str = "reference"
    score: str = "max-probability"
    lr: float = 0.1
    optimizer: str = "sgd"
    schedule: str = "steps"
    kaiming: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            other = REGISTRY.get(cls.name)
            if other is not None and other.__module__ != cls.__module__:
                taken = f"{cls.name!r}, in {cls.__module__} and {other.__module__}"
                raise InputError(explain("name", taken, "a name that no other method has", "Rename one of them."))
            REGISTRY[cls.name] = cls

    def __post_init__(self) -> None:
        if self.score not in self.scores:
            raise unknown(f"score of method {self.name!r}", self.score, self.scores)
        if self.optimizer not in self.optimizers:
            raise unknown(f"optimizer of method {self.name!r}", self.optimizer, self.optimizers)
        if self.schedule not in SCHEDULES:
            raise unknown("schedule", self.schedule, SCHEDULES)
        check_positive("lr", self.lr)

    @property
    def scores(self) -> tuple[str, ...]:
        """Every score that this method can give."""
        return (*(SAMPLE_SCORES if self.random else ONE_DRAW_SCORES), *self.own_scores)

    @abstractmethod
    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> nn.Module:
        """The network with everything that prediction needs in its ``state_dict``."""

    @abstractmethod
    def stages(self, run: Run) -> list[Stage]:
        """How the network is trained, in order."""

    def finish(self, run: Run) -> None:
        """What has to be gathered once the network is trained."""

    def compilable(self, network: nn.Module) -> list[nn.Module]:
        """The modules that training calls as a whole, which can be compiled for its time."""
        return [network.net, network.backbone] if isinstance(network, Attached) else [network]

    def predict(self, network: nn.Module, x: Tensor, draws: int, seed: int) -> Prediction:
        """What the network says about a batch; called in eval mode, without gradients.

        Random numbers belong to (seed, draw) alone, so that an input gets the same result in any batch.
        """
        return Prediction(network(x).float().softmax(1)[None], default=self.score)

    def make_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return make_optimizer(self.optimizer, parameters, self.lr)

    def to_config(self) -> dict[str, Any]:
        """Name and hyper-parameters as JSON can hold them; ``make_method(**config)`` gives the method back."""
        return {"name": self.name, **dataclasses.asdict(self)}


def make_method(name: str, variant: str = "reference", **options: Any) -> Method:
    """A method by name, with the hyper-parameters of a variant and changes to them."""
    if name not in REGISTRY:
        raise unknown("method", name, REGISTRY)
    kind = REGISTRY[name]
    if variant not in kind.variants:
        raise unknown(f"variant of method {name!r}", variant, kind.variants)
    known = [each.name for each in dataclasses.fields(kind) if each.name != "variant"]
    for option in options:
        if option not in known:
            raise unknown(f"option of method {name!r}", option, known)
    return kind(**{**kind.variants[variant], **options, "variant": variant})


def full_outliers(example: Tensor) -> dict[str, Any]:
    """Outliers for methods that know only "inside" and "outside": nothing in them supports a label."""
    if not example.is_floating_point():
        return {"name": "tokens", "severity": [1.0, 1.0]}
    if example.ndim == 2:
        return {"name": "tabular", "severity": [1.0, 1.0]}
    return {"name": "mixed", "parts": list(CONTENT), "severity": [1.0, 1.0]}


def check_positive(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise InputError(explain(argument, repr(value), "a positive number"))


def check_share(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(explain(argument, repr(value), "a number from 0 to below 1"))


def check_count(argument: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(explain(argument, repr(value), "a whole number of at least 1"))


def check_choice(argument: str, value: object, accepted: Any) -> None:
    if value not in accepted:
        raise unknown(argument, value, accepted)
