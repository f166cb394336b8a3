"""What every generator of outliers shares: the call, the severity dial, the value range, and the config."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import dataclass_transform

from abnn.errors import InputError, NotFittedError, explain, unknown
from abnn.model.inputs import Batch, Inputs
from abnn.outliers.random import Rng
from abnn.outliers.ranges import FIRST, LAYOUTS, Range, channels_back, channels_first, check_range, layout_of
from abnn.outliers.vocabulary import Vocabulary, restored, vocabulary_of, with_padding_known

REGISTRY: dict[str, type[Outliers]] = {}
"""Generators by name; a subclass of :class:`Outliers` that sets ``name`` is added by being defined."""
FORMS = {
    "flat": "floating-point values [B, F]",
    "signal": "[B, C, L]",
    "image": "[B, C, H, W]",
    "volume": "[B, C, D, H, W]",
    "tokens": "whole numbers [B, L]",
}
POSITIVE = (1e-9, 1e9)
SPATIAL, VALUES = ("signal", "image", "volume"), ("flat", "signal", "image", "volume")


@dataclass(frozen=True)
class OutlierBatch:
    """Outliers made from one batch of in-distribution inputs."""

    x: Any
    """Same shape, dtype and device as the inputs they were made from."""
    severity: Tensor
    """float32 ``[B]`` in [0, 1]; the target of the mean prediction is ``(1 - severity) onehot(y) + severity / K``."""
    y: Tensor
    """Labels of the inputs they were made from; they mean something only where ``severity < 1``."""


@dataclass_transform(kw_only_default=True, eq_default=False)
@dataclass(kw_only=True, eq=False)
class Outliers(ABC):
    """A generator of outliers: ``outliers(x, y, generator=g)`` gives an :class:`OutlierBatch`.

    Severity 0 leaves an input as it is; 1 leaves nothing that supports its label. Every sample has its own, drawn
    uniformly from the pair ``severity`` (one number: always that), or given by the caller, who then gets at most the
    upper end of the pair: what each sample really has stands in the batch. All random numbers come from ``generator``,
    on the generator's device, or from torch's global state. Of ``capturable`` kinds, how many depends on the shape of the
    batch alone. A subclass is a dataclass without being decorated: its annotated attributes are its options.

    layout  "channels-first" or "channels-last"; None: what the model says, else first; see :mod:`abnn.outliers.ranges`
    """

    name: ClassVar[str] = ""
    forms: ClassVar[tuple[str, ...] | None] = VALUES
    """Accepted forms of inputs, see ``FORMS``; None: those that all parts accept."""

    limits: ClassVar[tuple[tuple[str, float, float], ...]] = ()
    """Options that are numbers, and their least and largest value."""
    choices: ClassVar[tuple[tuple[str, tuple[Any, ...]], ...]] = ()
    """Other options, and their accepted values."""

    severity: tuple[float, float] = (0.0, 1.0)
    layout: str | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(kw_only=True, eq=False)(cls)
        if "name" in vars(cls):
            REGISTRY[cls.name] = cls

    def __post_init__(self) -> None:
        self.severity = severity_pair(self.severity)
        for option, least, most in self.limits:
            value, kind = getattr(self, option), int if isinstance(getattr(type(self), option), int) else (int, float)
            if not isinstance(value, kind) or not least <= value <= most:
                number = "a whole number" if kind is int else "a number"
                raise InputError(explain(option, repr(value), f"{number} from {least:g} to {most:g}"))
        for option, accepted in (*self.choices, ("layout", (None, *LAYOUTS))):
            if getattr(self, option) not in accepted:
                raise unknown(option, getattr(self, option), accepted)
        self._range: Range | None = None
        self._placed: Range | None = None  # the same where the inputs are, and of their type
        self.vocabulary: Vocabulary | None = None  # which words there are, where a model has said so

    def __call__(
        self, x: Batch, y: Tensor, generator: torch.Generator | None = None, severity: float | Tensor | None = None
    ) -> OutlierBatch:
        first, mask = x.first if isinstance(x, Inputs) else x, None
        _check_batch(first, y)
        self.check_form(first)
        if form_of(first) == "tokens":
            first, mask = with_padding_known(x, self.vocabulary)
        # Half precision has too few digits for sums of fields and for counting patches.
        work = first.float() if first.dtype in (torch.float16, torch.bfloat16) else first
        like = work if work.is_floating_point() else torch.empty(0, device=work.device)
        rng = Rng(generator, like, self.layout, pads=mask is not None)
        dial = _severity_tensor(severity, first)
        result, counted = self.generate(channels_first(work, self.layout), dial, rng)
        outliers = channels_back(result, self.layout).to(first.dtype)
        return OutlierBatch(x=restored(x, outliers, mask, self.vocabulary), severity=counted, y=y)

    @abstractmethod
    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        """Return outliers of ``x`` [B, C, ...], in its floating-point type, and their severities, drawn here for None."""

    def parts_of(self) -> tuple[Outliers, ...]:
        """Return the generators that this one is made of."""
        return ()

    def walk(self) -> Iterator[Outliers]:
        """Yield this generator and, through all levels, those that it is made of."""
        yield self
        for part in self.parts_of():
            yield from part.walk()

    def choose_severity(self, batch: int, severity: Tensor | None, rng: Rng) -> Tensor:
        # Numbers are drawn in both cases: with one seed, different severities then show the same outliers by degrees.
        own = rng.between(*self.severity, batch).float()
        return own if severity is None else severity.clamp(max=self.severity[1])

    @property
    def capturable(self) -> bool:
        """Whether all choices are made on the device, so that a CUDA graph can make outliers."""
        return all(part.capturable for part in self.parts_of())

    # -- the range of values -------------------------------------------------------------------------------------------

    def prepare(self, low: Tensor | float, high: Tensor | float) -> None:
        """Set the range of values, one number or one per channel (see :func:`measure_range`), for all parts too."""
        bounds = check_range(low, high)
        for each in self.walk():
            each._range, each._placed = bounds, None

    def prepare_missing(self, low: Tensor | float, high: Tensor | float) -> None:
        """Set the range only where none was set before."""
        bounds = check_range(low, high)
        for each in self.walk():
            each._range = bounds if each._range is None else each._range

    @property
    def uses_range(self) -> bool:
        """Whether outliers of this kind depend on the range of values."""
        return not self.parts_of() or any(part.uses_range for part in self.parts_of())

    @property
    def needs_range(self) -> bool:
        return any(each.uses_range and each._range is None for each in self.walk() if not each.parts_of())

    def layout_for(self, model: Any) -> str:
        """Return the layout that this generator was told, else that of the inputs of ``model``."""
        return self.layout or layout_of(model)

    def prepared_for(
        self, model: Any, value_range: tuple[Any, Any] | None, measure: Callable[[str], Range]
    ) -> Outliers:
        """Return a copy with the layout and the words of a model, and with a range of values.

        value_range  (low, high); None: the range that this generator has
        measure      returns the range of inputs in a layout; called where there is no other range
        """
        result, layout, vocabulary = self.copied(), self.layout_for(model), vocabulary_of(model)
        for each in result.walk():
            each.vocabulary = vocabulary
        result.layout = self.layout or (layout if layout != FIRST else None)  # a config names what is not usual
        if value_range is not None and result.uses_range:
            result.prepare(*value_range)
        if result.needs_range:
            result.prepare_missing(*measure(layout))
        return result

    def copied(self) -> Outliers:
        """Return a copy whose range can be set without changing this generator."""
        return copy.copy(self)

    def value_range(self, x: Tensor) -> Range:
        """Return the lowest value and the span of the range, shaped to broadcast over ``x``."""
        if self._range is None:
            fix = "call prepare(low, high) first, for example prepare(*measure_range(batches))"
            raise NotFittedError(f"outliers {self.name!r} need the range of values: {fix}.")
        if self._placed is None or self._placed[0].device != x.device or self._placed[0].dtype != x.dtype:
            self._placed = (self._range[0].to(x.device, x.dtype), self._range[1].to(x.device, x.dtype))
        low, high = self._placed
        if low.numel() not in (1, x.shape[1]):
            raise InputError(explain("x", f"{x.shape[1]} channels", f"{low.numel()}, as given to prepare()"))
        shape = (1, -1, *[1] * (x.ndim - 2))
        return low.view(shape), (high - low).view(shape)

    def in_unit_range(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``x`` with the range of its values mapped to [0, 1] and cut there, and what :meth:`value_range` returns.

        A channel that never changes has no span to divide by, and becomes zero.
        """
        low, span = self.value_range(x)
        return ((x - low) / span.clamp_min(torch.finfo(x.dtype).tiny)).clamp(0, 1), low, span

    # -- which inputs, and what to remember ----------------------------------------------------------------------------

    def check_form(self, x: Tensor) -> None:
        """Raise an error for inputs of a form that this kind does not take."""
        if self.forms is None:
            for part in self.parts_of():
                part.check_form(x)
        elif form_of(x) not in self.forms:
            actual, accepted = f"{x.dtype} of shape {tuple(x.shape)}", " or ".join(FORMS[form] for form in self.forms)
            by_form = (
                "'tokens' for whole numbers, 'tabular' for flat features, 'auto' to choose by the form of the inputs"
            )
            fix = f"Use {by_form}, or a data set of real outliers."
            raise InputError(explain(f"x for outliers {self.name!r}", actual, accepted, fix))

    def chosen_for(self, x: Batch) -> Outliers:
        """Return what makes outliers from inputs like these: this generator, unless it chooses another by their form."""
        return self

    def data_digests(self) -> list[str]:
        """Return what tells real outliers from others, which no config holds; nothing where outliers are made up."""
        return [digest for part in self.parts_of() for digest in part.data_digests()]

    def to_config(self) -> dict[str, Any]:
        """Return name, options and value range as JSON can hold them."""
        options = {f.name: _plain(getattr(self, f.name), self._range) for f in dataclasses.fields(self) if f.init}
        if self.layout is None:
            del options["layout"]
        if self._range is not None:
            options["range"] = [bound.tolist() for bound in self._range]
        return {"name": self.name, **options}

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> Outliers:
        """Return the generator that ``to_config`` described."""
        options = dict(config)
        kind, bounds = lookup(options.pop("name", None)), options.pop("range", None)
        outliers = kind.build(options)
        if bounds is not None:
            outliers.prepare_missing(*(torch.tensor(bound) for bound in bounds))
        return outliers

    @classmethod
    def build(cls, options: dict[str, Any]) -> Outliers:
        """Return an instance from options by name. An unknown name is an error that lists the options there are."""
        accepted = [f.name for f in dataclasses.fields(cls) if f.init]
        for option in options:
            if option not in accepted:
                raise unknown(f"option of outliers {cls.name!r}", option, accepted)
        return cls(**options)


class Change(Outliers):
    """A generator that makes one kind of change of a given severity to every sample."""

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        severity = self.choose_severity(len(x), severity, rng)
        dial = severity.to(x.dtype if x.is_floating_point() else severity.dtype).view(-1, *[1] * (x.ndim - 1))
        # Severity 0 means the very same numbers, which arithmetic through the value range would not give back.
        return torch.where(dial == 0, x, self.change(x, dial, rng)), self.counted(severity)

    @abstractmethod
    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        """Return ``x`` changed by ``dial``, the severity shaped to broadcast over ``x``."""

    def counted(self, dial: Tensor) -> Tensor:
        """Return the severity that a change by ``dial`` really has."""
        return dial


class Blend(Change):
    """Something else in place of the content, blended in: ``(1 - dial) x + dial v``.

    A shape is read for long beneath what is blended in. With ``fade`` above 1 the severity follows that: it is the dial
    to the power of ``fade``, so that 4 counts a dial of 1/2 as a severity of 1/16.
    """

    limits: ClassVar[tuple[tuple[str, float, float], ...]] = (("fade", *POSITIVE),)
    fade: float = 1.0

    def change(self, x: Tensor, dial: Tensor, rng: Rng) -> Tensor:
        low, span = self.value_range(x)
        return torch.lerp(x, low + span * self.other(x, rng), dial)

    @abstractmethod
    def other(self, x: Tensor, rng: Rng) -> Tensor:
        """Return what is blended in, in the form of ``x``, with values in [0, 1]."""

    def counted(self, dial: Tensor) -> Tensor:
        return dial if self.fade == 1 else dial**self.fade

    def to_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().to_config().items() if key != "fade" or value != 1}


class Exchange(Change):
    """A change that takes from other samples of the batch: alone in it, a sample stays as it is, with severity 0."""

    uses_range = False

    def generate(self, x: Tensor, severity: Tensor | None, rng: Rng) -> tuple[Tensor, Tensor]:
        result, severity = super().generate(x, severity, rng)
        same = (result == x).flatten(1).all(1)  # also one that met a copy of itself, as mixtures make them to fill up
        return result, severity.masked_fill(same, 0.0)


def form_of(x: Batch) -> str | None:
    """Return the form of inputs, a name in ``FORMS``; None for others."""
    if not x.is_floating_point():
        return "tokens" if x.ndim == 2 else None
    return VALUES[x.ndim - 2] if x.ndim - 2 < len(VALUES) else None


def _check_batch(x: Any, y: Any) -> None:
    if not isinstance(x, Tensor) or x.ndim < 2 or x.is_complex() or x.dtype == torch.bool or len(x) == 0:
        actual = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        accepted = "a non-empty batch [B, C, ...] of floating-point values, or of tokens [B, L]"
        raise InputError(explain("x", actual, accepted))
    if not isinstance(y, Tensor) or y.ndim < 1 or len(y) != len(x):
        actual = f"shape {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
        raise InputError(explain("y", actual, f"a tensor with one label for each of the {len(x)} inputs"))


def lookup(name: object) -> type[Outliers]:
    """Return the class of generators with this name. Another name is an error that lists those there are."""
    if not isinstance(name, str) or name not in REGISTRY:
        raise unknown("outliers", name, REGISTRY)
    return REGISTRY[name]


def severity_pair(value: Any) -> tuple[float, float]:
    """Return (least, most) in [0, 1] from a pair or one number; raise an error for anything else."""
    pair = (value, value) if isinstance(value, int | float) else value
    try:
        least, most = (float(bound) for bound in pair)
    except (TypeError, ValueError):
        least, most = 1.0, 0.0
    if not 0.0 <= least <= most <= 1.0:
        raise InputError(explain("severity", repr(value), "a number in [0, 1], or a pair (least, most) of them"))
    return least, most


def _severity_tensor(severity: float | Tensor | None, x: Tensor) -> Tensor | None:
    if severity is None:
        return None
    if not isinstance(severity, Tensor):
        severity_pair(severity if isinstance(severity, int | float) else (severity,))
        return torch.full((len(x),), float(severity), device=x.device)
    # Values on an accelerator are not looked at: that would stop the host on every call.
    outside = severity.device.type == "cpu" and not bool(((severity >= 0) & (severity <= 1)).all())
    if severity.shape not in ((), (len(x),)) or outside:
        actual = "values outside [0, 1]" if outside else f"shape {tuple(severity.shape)}"
        raise InputError(explain("severity", actual, f"values in [0, 1], one or {len(x)} of them"))
    return severity.detach().to(x.device, torch.float32).expand(len(x))


def _plain(value: Any, bounds: Range | None) -> Any:
    """Return an option as JSON can hold it. A mixture hands its range on; a part with another range keeps that."""
    if isinstance(value, Outliers):
        config = value.to_config()
        if bounds is not None and config.get("range") == [bound.tolist() for bound in bounds]:
            del config["range"]
        return config
    return [_plain(item, bounds) for item in value] if isinstance(value, tuple | list) else value
