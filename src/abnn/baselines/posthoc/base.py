"""What a post-hoc score is: a number per input from what a trained network already computes.

A score sees :class:`Features` only, never the network's code, so it works on a plain network, on an attached model and on
arrays from elsewhere. To add one, write one file with one pure function and one :class:`PostHoc` around it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from abnn.baselines.options import check_choice, check_options, register
from abnn.errors import InputError, MissingExtraError, NotFittedError, explain, import_extra
from abnn.networks.vision import torchvision

POSTHOC: dict[str, type[PostHoc]] = {}  # every score by its name
PARTS = {
    "last": "the input of the last linear layer",
    "blocks": "the statistics of all blocks",
    "labels": "the true classes",
    "head": "the last linear layer, with the logits as its output",
    "network": "the inputs and the network itself",
}
"""The parts of Features that a score may need beside the logits."""


class Head(nn.Linear):
    """The network's last layer, z = W h + b, with weights [K, D] and [K] that do not learn."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight.shape[1], len(weight), bias is not None, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # type: ignore[assignment]


@dataclass(frozen=True)
class Features:
    """What the network computes for N inputs."""

    logits: Tensor  # [N, K]; of several draws, those of the averaged prediction
    last: Tensor | None = None  # input of the last linear layer, [N, D]
    blocks: Tensor | None = None  # statistics of all blocks, see :mod:`abnn.model.features`, [N, F]
    labels: Tensor | None = None  # true classes, [N], for fitting
    head: Head | None = None  # the last linear layer, if the logits are its output
    inputs: Tensor | None = None  # what the network was given, for scores that change it; and
    network: Callable[[Tensor], tuple[Tensor | None, Tensor]] | None = None  # inputs to (last, logits), differentiable
    notes: Mapping[str, Tensor] = field(default_factory=dict)  # what single scores note of each input, by their names

    def __post_init__(self) -> None:
        for name in ("last", "blocks", "labels", "inputs"):
            rows = getattr(self, name)
            if rows is not None and len(rows) != len(self.logits):
                raise InputError(explain(name, f"{len(rows)} rows", f"{len(self.logits)}, one for each row of logits"))

    def __len__(self) -> int:
        return len(self.logits)

    def part(self, name: str) -> Any:
        """Return a part that has been checked to be there."""
        value = getattr(self, name)
        assert value is not None
        return value

    def differentiable(self, score: str) -> tuple[Tensor, Callable[[Tensor], tuple[Any, Tensor]]]:
        """Return inputs and network for a score that follows the gradient, which whole numbers have not."""
        x: Tensor = self.part("inputs")
        if not x.is_floating_point():
            raise InputError(explain("x", f"dtype {x.dtype}", f"for {score!r}: real numbers, which have a gradient"))
        return x, self.part("network")


@dataclass
class PostHoc(ABC):
    """One score: settings as fields of the dataclass, and what it learned as named tensors in ``state``."""

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()  # the parts of Features that fitting and scoring use, beside the logits
    learns: ClassVar[bool] = True  # whether there is anything to fit
    by_class: ClassVar[bool] = False  # whether fitting needs labels
    takes_notes: ClassVar[bool] = False  # whether it notes something of each training input, see :meth:`note`
    state: dict[str, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __init_subclass__(cls) -> None:
        register(POSTHOC, "score", cls)

    def __post_init__(self) -> None:
        check_options(self)

    def prepare(self) -> None:
        """Raise now what would make :meth:`fit` fail after a long pass over the data: a missing extra."""

    def fit(self, features: Features) -> None:
        """Learn from the features of training data; what was learned before is forgotten."""
        self.prepare()
        needs = [part for part in self.needs if part != "network" or self.name not in features.notes]
        self._check(features, [*needs, "labels"] if self.by_class else needs)
        if self.learns:
            with torch.no_grad():
                state = self.learn(features)
            # Laid out as files keep them, so that a loaded score rounds like the fitted one.
            layout = torch.contiguous_format
            self.state = {name: value.detach().clone(memory_format=layout) for name, value in state.items()}

    def score(self, features: Features) -> Tensor:
        """Return one number per input, larger = more uncertain, [N]."""
        self._check(features, self.needs)
        if not self.fitted:
            raise NotFittedError(f"score: {self.name!r} learns from training data; call fit() with it first.")
        self.state = {name: value.to(features.logits.device) for name, value in self.state.items()}
        return self.values(features)

    @property
    def fitted(self) -> bool:
        return not self.learns or bool(self.state)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings by name, as JSON can hold them."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def note(self, features: Features) -> Tensor:
        """Return what to keep of each input for :meth:`learn`, [N, ...]; called with the network at hand."""
        raise NotImplementedError

    def learn(self, features: Features) -> dict[str, Tensor]:
        """Return what to keep of the training data."""
        raise NotImplementedError

    @abstractmethod
    def values(self, features: Features) -> Tensor:
        """Return the score, with everything that it needs at hand."""

    def _check(self, features: Features, needs: Any) -> None:
        if features.logits.ndim != 2 or len(features) == 0:
            shape = f"logits of shape {tuple(features.logits.shape)}"
            raise InputError(explain("features", shape, "logits of shape [N, classes], with at least one input"))
        for part in needs:
            if getattr(features, part) is None or (part == "network" and features.inputs is None):
                raise InputError(explain("features", f"none with {part!r}", f"for {self.name!r}: {PARTS[part]}"))


def add_score(base: type[PostHoc], name: str, settings: Mapping[str, Any] | None = None, **own: Any) -> None:
    """Make a class a score of another name: with settings, each a default with its check, and attributes of its own."""
    own |= {"name": name, "__module__": base.__module__, **(settings or {})}
    dataclass(type(name, (base,), {**own, "__annotations__": dict.fromkeys(settings or (), Any)}))


def library(module: str, package: str) -> Any:
    """Return a module of the extra "posthoc", after torchvision, which its packages import."""
    try:
        torchvision()
    except ImportError:
        raise MissingExtraError(package, "posthoc") from None
    return import_extra(module, "posthoc", package)


def build_posthoc(name: str, **settings: Any) -> PostHoc:
    """Return a score by name, with its settings: ``build_posthoc("knn", neighbours=10)``."""
    check_choice("scores", name, POSTHOC)
    for setting in settings:
        check_choice(f"setting of {name!r}", setting, POSTHOC[name]().settings or ("none",))
    return POSTHOC[name](**settings)
