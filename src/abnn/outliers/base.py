"""What every generator of outliers shares: the call, the severity dial, the value range, and the config."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.errors import InputError, NotFittedError, explain, unknown
from abnn.outliers.random import Rng

REGISTRY: dict[str, type[Outliers]] = {}
"""Generators by name; a subclass of :class:`Outliers` that sets ``name`` is added by being defined."""


@dataclass(frozen=True)
class OutlierBatch:
    """Outliers made from one batch of in-distribution inputs."""

    x: Tensor
    """Same shape, dtype and device as the inputs they were made from."""
    severity: Tensor
    """float32 ``[B]`` in [0, 1]; the target of the mean prediction is ``(1 - severity) onehot(y) + severity / K``."""
    y: Tensor
    """Labels of the inputs they were made from; they mean something only where ``severity < 1``."""


@dataclass(kw_only=True, eq=False)
class Outliers(ABC):
    """A generator of outliers: ``outliers(x, y, generator=g)`` gives an :class:`OutlierBatch`.

    Severity 0 leaves an input as it is; 1 leaves nothing that supports its label. Every sample has its own, drawn
    uniformly from the pair ``severity`` (one number: always that), or given by the caller, who then gets at most the
    upper end of the pair: what each sample really has stands in the batch. All random numbers come from ``generator``,
    on the generator's device, or from torch's global state; how many depends on the shape of the batch alone.
    """

    name: ClassVar[str] = ""
    ranks: ClassVar[tuple[int, ...] | None] = None
    """Accepted numbers of spatial dimensions (0: flat features ``[B, F]``); None: any."""

    takes_values: ClassVar[bool] = True
    """Whether inputs may be floating-point values."""
    takes_tokens: ClassVar[bool] = False
    """Whether inputs may be whole numbers, which name things and have no range."""

    severity: tuple[float, float] = (0.0, 1.0)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            REGISTRY[cls.name] = cls

    def __post_init__(self) -> None:
        self.severity = _severity_pair(self.severity)
        self._range: tuple[Tensor, Tensor] | None = None
        self._placed: tuple[Tensor, Tensor] | None = None

    def __call__(
        self,
        x: Tensor,
        y: Tensor,
        generator: torch.Generator | None = None,
        severity: float | Tensor | None = None,
    ) -> OutlierBatch:
        self._check(x, y)
        # Half precision has too few digits for sums of fields and for counting patches.
        work = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        like = work if work.is_floating_point() else torch.empty(0, device=work.device)
        made, severity = self.generate(work, _severity_tensor(severity, x), Rng(generator, like))
        return OutlierBatch(x=made.to(x.dtype), severity=severity, y=y)

    def prepare(self, low: Tensor | float, high: Tensor | float) -> None:
        """Set the range of values, one number or one per channel (see :func:`measure_range`)."""
        self._range = self._placed = _checked_range(low, high)

    def prepare_missing(self, low: Tensor | float, high: Tensor | float) -> None:
        """Set the range only where none was set before."""
        if self._range is None:
            self.prepare(low, high)

    @property
    def uses_range(self) -> bool:
        """Whether outliers of this kind depend on the range of values."""
        return True

    @property
    def needs_range(self) -> bool:
        """Whether the range still has to be set."""
        return self.uses_range and self._range is None

    def with_range(self, given: tuple[Any, Any] | None, measure: Callable[[], tuple[Tensor, Tensor]]) -> Outliers:
        """A copy that has its range: ``given``, else its own, else what ``measure()`` finds."""
        made = self.copied()
        if given is not None and made.uses_range:
            made.prepare(*given)
        if made.needs_range:
            made.prepare_missing(*measure())
        return made

    def copied(self) -> Outliers:
        """A copy whose range can be set without changing this generator."""
        return copy.copy(self)

    @abstractmethod
    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        """Outliers in the floating-point type of ``x`` and their severities, drawn here where None came."""

    def choose_severity(self, batch: int, given: Tensor | None, rng: Rng) -> Tensor:
        # Numbers are drawn in both cases: with one seed, different severities then show the same outliers by degrees.
        drawn = rng.between(*self.severity, batch).float()
        return drawn if given is None else given.clamp(max=self.severity[1])

    def value_range(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lowest value and span, shaped to broadcast over ``x``."""
        if self._range is None or self._placed is None:
            raise NotFittedError(
                f"outliers {self.name!r} need the range of values: call prepare(low, high) first, for example "
                "prepare(*measure_range(batches))."
            )
        if self._placed[0].device != x.device or self._placed[0].dtype != x.dtype:
            self._placed = (self._range[0].to(x.device, x.dtype), self._range[1].to(x.device, x.dtype))
        low, high = self._placed
        if low.numel() not in (1, x.shape[1]):
            raise InputError(explain("x", f"{x.shape[1]} channels", f"{low.numel()}, as given to prepare()"))
        shape = (1, -1, *[1] * (x.ndim - 2))
        return low.view(shape), (high - low).view(shape)

    def _check(self, x: Tensor, y: Tensor) -> None:
        if not isinstance(x, Tensor) or x.ndim < 2 or x.is_complex() or x.dtype == torch.bool or len(x) == 0:
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            accepted = "a non-empty batch [B, C, ...] of floating-point values, or of tokens [B, L]"
            raise InputError(explain("x", given, accepted))
        if not isinstance(y, Tensor) or y.ndim < 1 or len(y) != len(x):
            given = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise InputError(explain("y", given, f"a tensor with one label for each of the {len(x)} inputs"))
        self.check_rank(x)

    def check_rank(self, x: Tensor) -> None:
        if not (self.takes_values if x.is_floating_point() else self.takes_tokens):
            accepted, fix = (
                ("floating-point values", "Use 'tokens' for whole numbers [B, L], or a data set of real outliers.")
                if self.takes_values
                else ("whole numbers", "Use 'auto' to choose by the form of the inputs.")
            )
            given = f"{x.dtype} of shape {tuple(x.shape)}"
            raise InputError(explain(f"x for outliers {self.name!r}", given, accepted, fix))
        if self.ranks is not None and x.ndim - 2 not in self.ranks:
            shapes = " or ".join(SHAPES[rank] for rank in self.ranks)
            fix = (
                "Use 'tabular' for flat features."
                if x.ndim == 2
                else "Use 'auto' to choose by the shape of the inputs."
            )
            raise InputError(explain(f"x for outliers {self.name!r}", f"shape {tuple(x.shape)}", shapes, fix))

    def chosen_for(self, x: Tensor) -> Outliers:
        """What makes outliers from inputs like these: this generator, unless it chooses another one by their form."""
        return self

    def data_digests(self) -> list[str]:
        """What tells real outliers from others, which a config does not hold; nothing where outliers are made up."""
        return []

    def to_config(self) -> dict[str, Any]:
        """Name, options and value range as JSON can hold them."""
        options = {f.name: _plain(getattr(self, f.name), self._range) for f in dataclasses.fields(self) if f.init}
        if self._range is not None:
            options["range"] = [bound.tolist() for bound in self._range]
        return {"name": self.name, **options}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Outliers:
        """The generator that ``to_config`` described."""
        options = dict(config)
        kind = lookup(options.pop("name", None))
        value_range = options.pop("range", None)
        outliers = kind.build(options)
        if value_range is not None:
            outliers.prepare_missing(*(torch.tensor(bound) for bound in value_range))
        return outliers

    @classmethod
    def build(cls, options: dict[str, Any]) -> Outliers:
        """An instance from options by name, with an error that names the ones there are."""
        accepted = [f.name for f in dataclasses.fields(cls) if f.init]
        for option in options:
            if option not in accepted:
                raise unknown(f"option of outliers {cls.name!r}", option, accepted)
        return cls(**options)


SHAPES = {0: "[B, F]", 1: "[B, C, L]", 2: "[B, C, H, W]", 3: "[B, C, D, H, W]"}


@dataclass(kw_only=True, eq=False)
class Change(Outliers):
    """A generator that makes one kind of change of a given severity to every sample."""

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        severity = self.choose_severity(len(x), severity, rng)
        dial = severity.to(x.dtype if x.is_floating_point() else severity.dtype).view(-1, *[1] * (x.ndim - 1))
        # Severity 0 means the very same numbers, which arithmetic through the value range would not give back.
        return torch.where(dial == 0, x, self.change(x, dial, rng)), self.counted(severity)

    @abstractmethod
    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        """``x`` changed by ``dial``, the severity shaped to broadcast over ``x``."""

    def counted(self, dial: Tensor) -> Tensor:
        """The severity that a change by ``dial`` really has."""
        return dial


@dataclass(kw_only=True, eq=False)
class Blend(Change):
    """Something else in place of the content, blended in: ``(1 - dial) x + dial v``.

    A shape is read for long beneath what is blended in. With ``fade`` above 1 the severity follows that: it is the dial
    to the power of ``fade``, so that 4 counts a dial of 1/2 as a severity of 1/16.
    """

    fade: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("fade", self.fade)

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        low, span = self.value_range(x)
        return torch.lerp(x, low + span * self.other(x, rng), dial)

    @abstractmethod
    def other(self, x: Tensor, rng: Rng) -> Tensor:
        """What is blended in, in the form of ``x``, with values in [0, 1]."""

    def counted(self, dial: Tensor) -> Tensor:
        return dial if self.fade == 1 else dial**self.fade

    def to_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().to_config().items() if key != "fade" or value != 1}


def lookup(name: object) -> type[Outliers]:
    if not isinstance(name, str) or name not in REGISTRY:
        raise unknown("outliers", name, REGISTRY)
    return REGISTRY[name]


class Exchange(Change):
    """A change that takes from other samples of the batch: alone in it, a sample stays as it is, with severity 0."""

    @property
    def uses_range(self) -> bool:
        return False

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        made, severity = super().generate(x, severity, rng)
        same = (made == x).flatten(1).all(1)  # also one that met a copy of itself, as mixtures make them to fill up
        return made, severity.masked_fill(same, 0.0)


def positive(argument: str, value: float) -> None:
    if not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise InputError(explain(argument, repr(value), "a positive finite number"))


def measure_range(batches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each channel (dimension 1) over all batches, each of shape ``[C]``.

    Whole numbers have no channels: ``[1]`` for all of them.
    """
    low: Tensor | None = None
    high: Tensor | None = None
    for batch in batches:
        if not isinstance(batch, Tensor) or batch.ndim < 2 or batch.numel() == 0:
            given = f"shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else type(batch).__name__
            raise InputError(explain("batches", given, "non-empty tensors [B, C, ...]", "Pass the inputs alone."))
        values = batch.transpose(0, 1).flatten(1) if batch.is_floating_point() else batch.flatten()[None]
        least, most = torch.aminmax(values, dim=1)
        if not bool((torch.isfinite(least) & torch.isfinite(most)).all()):
            raise InputError(
                explain("batches", "NaN or infinite values", "finite values", "Clean or drop these samples.")
            )
        if low is None or high is None:
            low, high = least, most
        elif low.shape != least.shape:
            raise InputError(explain("batches", f"{len(least)} channels after {len(low)}", "one number of channels"))
        else:
            low, high = torch.minimum(low, least), torch.maximum(high, most)
    if low is None or high is None:
        raise InputError(explain("batches", "no batch", "at least one", "Is the loader empty?"))
    return low, high


def _checked_range(low: Tensor | float, high: Tensor | float) -> tuple[Tensor, Tensor]:
    bounds = tuple(torch.as_tensor(v).detach() for v in (low, high))
    # Channels may come as [C], [C, 1, 1] or [1, C, 1, 1]: all but one dimension must be 1.
    if any(v.numel() != max(v.shape, default=1) for v in bounds) or bounds[0].numel() != bounds[1].numel():
        given = " and ".join(str(tuple(v.shape)) for v in bounds)
        raise InputError(explain("low, high", f"shapes {given}", "one number, or one per channel, for each"))
    least, most = (v.flatten() if v.is_floating_point() else v.flatten().float() for v in bounds)
    if not bool((torch.isfinite(least) & torch.isfinite(most) & (least <= most)).all()):
        raise InputError(explain("low, high", f"{least.tolist()}, {most.tolist()}", "finite values with low <= high"))
    return least, most


def _severity_pair(value: Any) -> tuple[float, float]:
    pair = (value, value) if isinstance(value, int | float) else value
    try:
        least, most = (float(v) for v in pair)
    except (TypeError, ValueError):
        least, most = 1.0, 0.0
    if not 0.0 <= least <= most <= 1.0:
        raise InputError(explain("severity", repr(value), "a number in [0, 1], or a pair (least, most) of them"))
    return least, most


def _severity_tensor(severity: float | Tensor | None, x: Tensor) -> Tensor | None:
    if severity is None:
        return None
    if not isinstance(severity, Tensor):
        _severity_pair(severity if isinstance(severity, int | float) else (severity,))
        return torch.full((len(x),), float(severity), device=x.device)
    # Values on an accelerator are not looked at: that would stop the host on every call.
    outside = severity.device.type == "cpu" and not bool(((severity >= 0) & (severity <= 1)).all())
    if severity.shape not in ((), (len(x),)) or outside:
        given = "values outside [0, 1]" if outside else f"shape {tuple(severity.shape)}"
        raise InputError(explain("severity", given, f"values in [0, 1], one or {len(x)} of them"))
    return severity.detach().to(x.device, torch.float32).expand(len(x))


def _plain(value: Any, known: tuple[Tensor, Tensor] | None) -> Any:
    if isinstance(value, Outliers):
        # A mixture hands its own range on; a part that was given another one keeps it.
        own = value._range is not None and not (known and all(map(_equal, value._range, known)))
        return {k: v for k, v in value.to_config().items() if k != "range" or own}
    if isinstance(value, tuple | list):
        return [_plain(item, known) for item in value]
    return value


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.tolist() == other.tolist()
