"""What the metric functions return: frozen records that turn into plain data for JSON."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Result:
    """Base of all metric records."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python values: numbers, None, lists and dicts."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def numbers(self) -> dict[str, float]:
        """The fields that hold one real number: those that have a mean, a spread and a confidence interval."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, float)}


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
