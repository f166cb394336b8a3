"""The fields of a Triage as they come from a file, where anything may stand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from abnn.errors import FileFormatError, whole_number
from abnn.store.integrity import Field, whole


def check_stored(values: Mapping[str, Any]) -> None:
    """Refuse a field that :meth:`Triage.to_dict` cannot have given; lists are tuples by now."""
    for name, value in values.items():
        accepts, accepted = _FIELDS[name]
        if value is None and name in _OR_NONE:
            continue
        if not accepts(value):
            raise FileFormatError(
                f"triage.{name} is {repr(value)[:80]}; accepted: {accepted}{', or null' if name in _OR_NONE else ''}. "
                "The file is damaged or was changed: restore it, or calibrate again."
            )


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _share(value: Any) -> bool:
    return _number(value) and 0 <= value <= 1


def _numbers(value: Any) -> bool:
    return isinstance(value, tuple) and all(_number(each) for each in value)


def _quantiles(value: Any) -> bool:
    return _numbers(value) and len(value) in (0, 101) and sorted(value) == list(value)


def _pairs(value: Any) -> bool:
    return isinstance(value, tuple) and all(_numbers(each) and len(each) == 2 for each in value)


def _reference(value: Any) -> bool:
    if not (isinstance(value, tuple) and len(value) == 2 and all(_numbers(each) for each in value)):
        return False
    edges, counts = value
    rising = sorted(set(edges)) == list(edges) and all(_is_count(count) for count in counts)
    return rising and (len(counts) == len(edges) + 1 or not (edges or counts))


_is_count, _ = whole(0, 2**53)
_OR_NONE = ("confidence", "costs", "drawn", "views")
_FIELDS: dict[str, Field] = {
    "notice": (_number, "a number"),
    "reject": (_number, "a number"),
    "noticed": (_share, "a share from 0 to 1"),
    "rejected": (_share, "a share from 0 to 1"),
    "score": (lambda value: isinstance(value, str), "the name of a score"),
    "draws": whole(1, 2**53),
    "seed": (lambda value: whole_number(value) is not None, "a whole number"),
    "inputs": whole(0, 2**53),
    "calibration": (_quantiles, "101 numbers that do not fall, or none"),
    "confidence": (_share, "a share from 0 to 1"),
    "by_class": (_pairs, "pairs of numbers"),
    "costs": (lambda value: isinstance(value, dict), "costs of each verdict"),
    "reference": (_reference, "rising edges and one count more, or none of both"),
    "drawn": whole(1, 2**53),
    "temperature": (lambda value: _number(value) and value > 0, "a number above 0"),
    "views": whole(1, 2**53),
}
