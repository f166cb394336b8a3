"""Whether a saved model is what was saved: the fields of its description and its tensors, before anything is made of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.distance import FeatureDistance
from abnn.errors import AbnnWarning, FileFormatError, whole_number
from abnn.scores import SCORES
from abnn.views import STEPS

FIX = "The file is damaged or was changed: restore it, or save the model again."
Field = tuple[Callable[[Any], bool], str]
"""Whether a value is accepted, and what is, in words."""


def at_least(least: int) -> Field:
    """A field that holds a whole number."""
    return lambda value: (number := whole_number(value)) is not None and number >= least, f"a whole number from {least}"


def _of_type(kind: type, words: str, or_none: bool = False) -> Field:
    accepted = f"{words}, or null" if or_none else words
    return lambda value: isinstance(value, kind) or (or_none and value is None), accepted


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all((side := whole_number(each)) is not None and side > 0 for each in value)


_RECIPE = _of_type(dict, "a recipe", or_none=True)
_INPUTS: dict[str, Field] = {
    "input_shape": (_is_shape, "a list of whole numbers from 1"),
    "input_dtype": (
        lambda value: isinstance(value, str) and isinstance(getattr(torch, value, None), torch.dtype),
        "the name of a type such as float32",
    ),
    "classes": at_least(2),
    "views": (lambda value: whole_number(value) in range(1, len(STEPS) + 1), f"a whole number from 1 to {len(STEPS)}"),
    "extra": _of_type(dict, "an object"),
}
MODEL: dict[str, Field] = {
    **_INPUTS,
    "preset": _of_type(str, "a name"),
    "score": (lambda value: value in SCORES, f"one of {', '.join(sorted(SCORES))}"),
    "at": (
        lambda value: isinstance(value, list) and bool(value) and all(isinstance(each, str) for each in value),
        "a list of names",
    ),
    "spec": _of_type(dict, "an object"),
    "draws": at_least(1),
    "fingerprint": (_is_digest, "64 hexadecimal digits"),
    "backbone": _RECIPE,
    "triage": _of_type(dict, "an object", or_none=True),
}
METHOD: dict[str, Field] = {
    **_INPUTS,
    "score": _of_type(str, "a name"),
    "method": _of_type(dict, "an object"),
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
