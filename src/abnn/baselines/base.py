"""What a method is: it builds a network, says how it is trained, and predicts.

A method is a frozen dataclass whose fields are its hyper-parameters, with the defaults of its reference. It may have

    build(make_backbone, example)             the network, or networks, as one module that holds all that prediction needs
    losses(run, x, y, generator)              named losses of a batch, whose sum is minimised
    stages(run), finish(run)                  how it is trained, if that is more than one stage that minimises the losses
    draw_logits(network, x, draws, seed)      what the network says about a batch, once for each draw
    predict(network, x, draws, seed)          the same as a prediction, with scores that only this method can give

and is a plain network, trained by the cross-entropy, where it has none of them. ``variants`` names sets of changed
hyper-parameters: "reference" is the method as its own paper or code has it, "authors" as the authors of the attachments ran it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn import config
from abnn.attached import Attached
from abnn.baselines.options import check_choice, check_options, check_positive, register
from abnn.errors import InputError, explain
from abnn.model.calls import evaluating, logits_of
from abnn.networks.by_name import PaperResNet
from abnn.outliers import OutlierBatch, Outliers
from abnn.predict import Prediction
from abnn.scores import ONE_DRAW_SCORES, SAMPLE_SCORES
from abnn.store.folder import LEARNT
from abnn.train.batches import Batches
from abnn.train.optimizers import OPTIMIZERS, SCHEDULES, Schedule, can_follow, make_optimizer
from abnn.train.steps import average_gradients
from abnn.train.trainable import Trainable

REGISTRY: dict[str, type[Method]] = {}
# x + 16 N(0, 1), one noise map for all channels, not clipped: the outliers of the authors' own runs.
AUTHORS_NOISE: dict[str, Any] = {"name": "noise", **config.AUTHORS_NOISE, "severity": [1.0, 1.0]}
Losses = Callable[[Tensor, Tensor, torch.Generator | None], dict[str, Tensor]]


@dataclass(frozen=True)
class Run:
    """What training can use: the network on its device, the data, and who makes the outliers."""

    network: Any  # the module that the method built
    fabric: Any
    batches: Batches
    outliers: Outliers | None
    epochs: int
    size: int  # the number of training inputs
    held_out: Iterable[Any] | None = None  # data that was kept out of the batches

    def logits(self, x: Tensor, network: Callable[[Tensor], Any] | None = None) -> Tensor:
        """Return the output of the network, or of a part of it, in the run's precision, as float32."""
        with self.fabric.autocast():
            output = logits_of((network or self.network)(x))
        assert output is not None
        return output.float()

    def outlier_logits(self, x: Tensor, network: Callable[[Tensor], Any] | None = None) -> Tensor:
        """Return the same for outliers, which normalisation statistics must never see."""
        with evaluating(self.network):
            return self.logits(x, network)

    def make_outliers(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> OutlierBatch:
        assert self.outliers is not None
        return self.outliers(x, y, generator)


@dataclass(frozen=True)
class Stage:
    """One pass through :func:`abnn.train.loop.training`; ``make`` is called when the stages before have ended."""

    name: str
    epochs: int
    make: Callable[[], Trainable]
    schedule: str | Schedule = "constant"


class Minimise(Trainable):
    """Minimises the sum of ``losses(x, y, generator)`` over the parameters that its optimiser holds."""

    def __init__(
        self, run: Run, losses: Losses, optimizer: torch.optim.Optimizer, title: str, network: nn.Module | None = None
    ) -> None:
        self.run, self.losses, self.title = run, losses, title
        self.network: Any = network or run.network  # what is trained and put into checkpoints
        self.optimizers = {"network": optimizer}
        self.capturable = can_follow([optimizer])

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        self.network.train()
        losses = self.losses(x, y, generator)
        self.update(torch.stack(list(losses.values())).sum(), "network")
        return {name: loss.detach() for name, loss in losses.items()}

    def update(self, loss: Tensor, name: str) -> None:
        """One step of the named optimiser down the gradient of ``loss``; no gradient stays behind anywhere."""
        optimizer = self.optimizers[name]
        self.run.fabric.backward(loss)
        average_gradients([each for group in optimizer.param_groups for each in group["params"]], self.run.fabric)
        optimizer.step()
        self.network.zero_grad()

    def values(self) -> dict[str, Tensor]:
        return state_of(self.network)


@dataclass(frozen=True, kw_only=True)
class Method:
    """Hyper-parameters that every method has.

    variant    which set of hyper-parameters these are
    score      the score that predictions show first
    optimizer  "sgd" (momentum 0.9, weight decay 5e-4), "nesterov" (the same with Nesterov's momentum), "adam",
               "adam-l2" (weight decay 5e-4) or "adamw"
    schedule   of the learning rate: "steps" (a tenth after each quarter), "thirds", "fifths", "cosine", "cycle" or "constant"
    kaiming    how the paper's network starts when it is built by its name
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = "training"  # of the progress bar
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {"reference": {}, "authors": {}}
    own_scores: ClassVar[tuple[str, ...]] = ()
    random: ClassVar[bool] = False  # whether a prediction has several draws
    uses_outliers: ClassVar[str] = "never"  # "never", "may" or "must" be given
    optimizers: ClassVar[tuple[str, ...]] = tuple(OPTIMIZERS)  # what ``optimizer`` may be

    variant: str = "reference"
    score: str = "max-probability"
    lr: float = 0.1
    optimizer: str = "sgd"
    schedule: str = "steps"
    kaiming: bool = True

    def __init_subclass__(cls) -> None:
        register(REGISTRY, "method", cls)

    def __post_init__(self) -> None:
        check_options(self)
        check_choice(f"score of method {self.name!r}", self.score, self.scores)
        check_choice(f"optimizer of method {self.name!r}", self.optimizer, self.optimizers)
        check_choice("schedule", self.schedule, SCHEDULES)
        check_positive("lr", self.lr)

    @property
    def scores(self) -> tuple[str, ...]:
        """Every score that this method can give."""
        return (*(SAMPLE_SCORES if self.random else ONE_DRAW_SCORES), *self.own_scores)

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> nn.Module:
        """Return the network, with everything that prediction needs in its ``state_dict``."""
        return make_backbone()

    def losses(self, run: Run, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Return the losses of a batch by name; their sum is minimised."""
        return {"cross_entropy": F.cross_entropy(run.logits(x), y)}

    def stages(self, run: Run) -> list[Stage]:
        """Return how the network is trained, in order."""

        def make() -> Minimise:
            optimizer = self.make_optimizer(run.network.parameters())
            return Minimise(run, partial(self.losses, run), optimizer, self.title)

        return [Stage("train", run.epochs, make, self.schedule)]

    def pretraining(self, run: Run, name: str, plain: nn.Module, share: float) -> Stage:
        """Return a first stage, a share of all epochs, which trains a part of the network alone by the cross-entropy."""

        def losses(x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
            return {"cross_entropy": F.cross_entropy(run.logits(x, plain), y)}

        def make() -> Minimise:
            return Minimise(run, losses, self.make_optimizer(plain.parameters()), "training the plain network", plain)

        return Stage(name, min(round(share * run.epochs), run.epochs - 1), make, self.schedule)

    def finish(self, run: Run) -> None:
        """Gather what is needed once the network is trained."""

    def compilable(self, network: nn.Module) -> list[nn.Module]:
        """Return the modules that training calls as a whole, which can be compiled for its time."""
        return [network.net, network.backbone] if isinstance(network, Attached) else [network]

    def draw_logits(self, network: Any, x: Tensor, draws: int, seed: int) -> Tensor:
        """Return the logits of every draw, [S, B, K]; called in eval mode, without gradients.

        Random numbers belong to (seed, draw) alone, so that an input gets the same result in any batch.
        """
        return network(x)[None]

    def predict(self, network: Any, x: Tensor, draws: int, seed: int) -> Prediction:
        """Return what the network says about a batch; called as :meth:`draw_logits`."""
        if isinstance(network, Attached):
            return network.predict(x, draws=draws, seed=seed)
        return Prediction(self.draw_logits(network, x, draws, seed).float().softmax(2), default=self.score)

    def hold_out(self, loader: Any, seed: int) -> tuple[Any, Iterable[Any] | None]:
        """Return the loader to train with, and one of data that is kept out of it; None: none is."""
        return loader, None

    def make_optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return make_optimizer(self.optimizer, parameters, self.lr)

    def to_config(self) -> dict[str, Any]:
        """Return name and hyper-parameters as JSON can hold them; ``make_method(**config)`` gives the method back."""
        return {"name": self.name, **dataclasses.asdict(self)}


def make_method(name: str, variant: str = "reference", **options: Any) -> Method:
    """Return a method by name, with the hyper-parameters of a variant and changes to them."""
    check_choice("method", name, REGISTRY)
    kind = REGISTRY[name]
    check_choice(f"variant of method {name!r}", variant, kind.variants)
    accepted = [each.name for each in dataclasses.fields(kind) if each.name != "variant"]
    for option in options:
        check_choice(f"option of method {name!r}", option, accepted)
    return kind(**{**kind.variants[variant], **options, "variant": variant})


def check_paper_resnet(network: nn.Module, why: str) -> PaperResNet:
    """Return the network if it is the paper's, on whose parts some methods are built."""
    if not isinstance(network, PaperResNet):
        fix = "Use the backbone 'paper-resnet', with stem='small' for images of about 8x8."
        raise InputError(explain("backbone", type(network).__name__, f"PaperResNet, {why}", fix))
    return network


def state_of(network: nn.Module) -> dict[str, Any]:
    """Return all tensors of a network that mean something, where they live; a score not yet learnt means nothing."""
    empty = isinstance(network, Attached) and not network.is_judge
    state = network.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if not (empty and name.startswith(LEARNT))}
