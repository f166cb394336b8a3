"""Whether a saved model is what was saved: the fields of its description and its tensors, before anything is made of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.errors import AbnnWarning, FileFormatError, whole_number
from abnn.model.distance import FeatureDistance
from abnn.model.views import STEPS
from abnn.networks.recipe import MOST_NUMBERS, check_recipe, is_shape
from abnn.scores import SCORES

FIX = "The file is damaged or was changed: restore it, or save the model again."
Field = tuple[Callable[[Any], bool], str]
"""Whether a value is accepted, and what is, in words."""


def whole(least: int, most: int) -> Field:
    """A field that holds a whole number within bounds."""
    accepted = f"a whole number from {least} to {most:,}"
    return lambda value: (number := whole_number(value)) is not None and least <= number <= most, accepted


def _of_type(kind: type, words: str, or_none: bool = False) -> Field:
    accepted = f"{words}, or null" if or_none else words
    return lambda value: isinstance(value, kind) or (or_none and value is None), accepted


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


_RECIPE: Field = (
    lambda value: check_recipe(value) is None,
    "the name of an architecture with plain sizes within bounds, or null",
)
_INPUTS: dict[str, Field] = {
    "input_shape": (is_shape, f"a list of whole numbers from 1, at most {MOST_NUMBERS:,} in all"),
    "input_dtype": (
        lambda value: isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype),
        "the name of a type such as float32",
    ),
    "classes": whole(2, 2**20),
    "views": (lambda value: whole_number(value) in range(1, len(STEPS) + 1), f"a whole number from 1 to {len(STEPS)}"),
    "extra": _of_type(dict, "an object"),
}
_WIDTH, _ = whole(1, 4096)
_BOUNDED, _ = whole(1, 1000)
COUNTS = ("members", "samples", "diffusion_convs")
"""Fields of a method that decide how much memory its network takes."""
MODEL: dict[str, Field] = {
    **_INPUTS,
    "preset": _of_type(str, "a name"),
    "score": (lambda value: value in SCORES, f"one of {', '.join(sorted(SCORES))}"),
    "at": (
        lambda value: isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value),
        "a list of names",
    ),
    "spec": (
        lambda value: isinstance(value, dict) and (value.get("width") is None or _WIDTH(value["width"])),
        "an object, with a width of at most 4,096 channels",
    ),
    "draws": whole(1, 10_000),
    "fingerprint": (_is_digest, "64 hexadecimal digits"),
    "backbone": _RECIPE,
    "triage": _of_type(dict, "an object", or_none=True),
}
METHOD: dict[str, Field] = {
    **_INPUTS,
    "score": _of_type(str, "a name"),
    "method": (
        lambda value: isinstance(value, dict) and all(_BOUNDED(value.get(name, 1)) for name in COUNTS),
        f"an object, with {', '.join(COUNTS)} of at most 1,000",
    ),
    "backbone": _RECIPE,
}
SINCE_LATER = ("views",)  # fields that the first files of a format do not have


def check_fields(path: Path, values: Mapping[str, Any], fields: Mapping[str, Field], inside: str = "") -> None:
    """Refuse a field that save() cannot have written, and the lack of one; ``inside``: what holds the fields, "triage."."""
    for name, (accepts, accepted) in fields.items():
        if name not in values and name not in SINCE_LATER:
            raise FileFormatError(f"{path} is not complete: there is no {inside}{name}. {FIX}")
        if name in values and not accepts(values[name]):
            raise FileFormatError(f"{path}: {inside}{name} is {repr(values[name])[:80]}; accepted: {accepted}. {FIX}")


def check_classes(path: Path, said: int, classes: int) -> None:
    """Refuse a description of a network with another number of classes."""
    if said != classes:
        raise FileFormatError(f"{path}: classes is {said}; accepted: {classes}, as many as the network has. {FIX}")


def check_names(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse too few tensors, and too many."""
    if wanted.keys() != found.keys():
        odd = ", ".join(sorted(wanted.keys() ^ found.keys())[:4])
        raise FileFormatError(f"{path}: tensors {odd} are missing or not expected. {FIX}")


def check_shapes(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse another shape than wanted: copying would spread one number over many."""
    for name in wanted.keys() & found.keys():
        given, right = tuple(found[name].shape), tuple(wanted[name].shape)
        if given != right:
            raise FileFormatError(f"{path}: {name} has shape {given}; accepted: {right}. {FIX}")


def check_types(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Refuse whole numbers for fractions, and the other way round: copying would hide it. Any precision will do."""
    for name in wanted.keys() & found.keys():
        given, right = found[name].dtype, wanted[name].dtype
        if given != right and not (given.is_floating_point and right.is_floating_point):
            accepted = "a floating-point type" if right.is_floating_point else right
            raise FileFormatError(f"{path}: {name} is of type {given}; accepted: {accepted}. {FIX}")


def check_finite(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse what is not a number."""
    if broken := [name for name, value in tensors.items() if not value.isfinite().all()]:
        raise FileFormatError(
            f"{path}: NaN or infinite values in {', '.join(broken[:4])}{', ...' if len(broken) > 4 else ''}; the file is "
            "damaged, or the fit diverged. Restore the file, or fit and save the model again."
        )


def check_quantiles(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse quantiles of distances and misfits that fall: each is one of a larger share than the one before."""
    for name, values in tensors.items():
        if name.startswith("distance.") and name.endswith("quantiles") and (values.diff() < 0).any():
            given = ", ".join(f"{value:.4g}" for value in values.tolist())
            raise FileFormatError(f"{path}: {name} are {given}; accepted: numbers that do not fall. {FIX}")


def forget_statistics(path: Path, distance: FeatureDistance, fit: str, thresholds: bool = False) -> None:
    """Those of files from when distances were those of the plain network: today's would be measured against them.

    fit         the call that gathers them anew
    thresholds  whether there were any that go with them, which are left out as well
    """
    if distance.fitted:
        distance.forget()
        warnings.warn(
            f"{path} was saved when distances were measured on the network without attachments: its statistics of the "
            f"training data {'and its thresholds ' if thresholds else ''}are left out. Make them anew, {fit}"
            f"{', Triage.calibrate(model, ...)' if thresholds else ''}, and save the model again.",
            AbnnWarning,
            stacklevel=3,
        )
