"""The learnt score as numpy computes it from its parts: what counts how much, of any model, with torch or without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abnn.errors import InputError, explain

CUT, LOWEST, NEVER, WEIGHT_OF_ODDS = 8.0, -100.0, 6e4, 0.5  # as in abnn.scores.combined
NAMES = ("linear", "inner", "offset", "outer", "mean", "spread", "anchor", "readable")


@dataclass(frozen=True)
class Learnt:
    """What a fit has learnt about M small networks with H hidden numbers over P parts, see :mod:`abnn.scores.combined`.

    linear [M, P, 1], inner [M, P, H], offset [M, 1, H], outer [M, H, 1], mean and spread [M, 1], anchor and
    readable [P]
    """

    linear: np.ndarray
    inner: np.ndarray
    offset: np.ndarray
    outer: np.ndarray
    mean: np.ndarray
    spread: np.ndarray
    anchor: np.ndarray
    readable: np.ndarray

    @classmethod
    def of(cls, combined: Any) -> Learnt:
        """Return the numbers of an :class:`abnn.scores.combined.Combined`."""
        return cls(*(getattr(combined, name).double().cpu().numpy() for name in NAMES))

    @classmethod
    def from_dict(cls, values: dict[str, Any], parts: int) -> Learnt:
        """Return what :meth:`to_dict` gave; numbers of other shapes are an error. Earlier exports had no ``readable``."""
        values = {"readable": [NEVER] * parts, **values}
        try:
            arrays = {name: np.array(values[name], np.float64) for name in NAMES}
            members, _, hidden = arrays["inner"].shape
        except (KeyError, ValueError, TypeError):
            raise InputError(explain("learnt", "lists that are no arrays", f"{', '.join(NAMES)}")) from None
        shapes = ((members, parts, 1), (members, parts, hidden), (members, 1, hidden), (members, hidden, 1))
        for (name, array), shape in zip(arrays.items(), (*shapes, (members, 1), (members, 1), (parts,), (parts,))):
            if array.shape != shape or not np.isfinite(array).all():
                raise InputError(explain(f"learnt.{name}", f"shape {array.shape}", f"finite numbers of shape {shape}"))
        return cls(**arrays)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as JSON can hold them, with the digits of float32."""
        return {name: _digits(getattr(self, name).tolist()) for name in NAMES}

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the score of parts [B, P] without the term that grows outside of the data, [B]."""
        cut = np.clip(x, -CUT, CUT)
        hidden = np.tanh(np.matmul(cut, self.inner) + self.offset)
        said = (np.matmul(cut, self.linear) + np.matmul(hidden, self.outer))[..., 0]
        beyond = (np.maximum(x - self.readable, 0) * (self.readable < NEVER / 2)).sum(1)
        return ((said - self.mean) / self.spread).mean(0) + np.maximum(x, LOWEST) @ self.anchor + beyond

    def drops(self, x: np.ndarray, score: np.ndarray) -> np.ndarray:
        """Return by how much each score would be lower if a part were usual where it is above that, and what is left, [B, P + 1]."""
        x, count = x.astype(np.float64), x.shape[1]
        usual = np.repeat(x[:, None], count, axis=1)
        places = np.arange(count)
        usual[:, places, places] = np.minimum(x, 0)
        whole = self(x)
        return np.column_stack([whole[:, None] - self(usual.reshape(-1, count)).reshape(-1, count), score - whole])


def _digits(values: Sequence[Any]) -> list[Any]:
    return [_digits(each) if isinstance(each, list) else float(f"{each:.9g}") for each in values]
