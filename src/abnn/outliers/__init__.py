"""Outliers made from in-distribution inputs, or taken from a user's own data, with a severity in [0, 1] for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from abnn.errors import InputError, explain
from abnn.outliers.base import REGISTRY, Change, OutlierBatch, Outliers, lookup, measure_range
from abnn.outliers.content import Backgrounds, Blobs, Invert, Noise, Patches
from abnn.outliers.leaves import Leaves
from abnn.outliers.mixtures import Auto, Graded, Mixed, Tabular, TwoTier
from abnn.outliers.own import FromData
from abnn.outliers.style import Style
from abnn.outliers.tabular import FeatureNoise, FeatureShuffle
from abnn.outliers.tokens import Tokens

__all__ = [
    "REGISTRY",
    "Auto",
    "Backgrounds",
    "Blobs",
    "Change",
    "FeatureNoise",
    "FeatureShuffle",
    "FromData",
    "Graded",
    "Invert",
    "Leaves",
    "Mixed",
    "Noise",
    "OutlierBatch",
    "Outliers",
    "Patches",
    "Style",
    "Tabular",
    "Tokens",
    "TwoTier",
    "make_outliers",
    "measure_range",
]


def make_outliers(
    spec: str | Outliers | Mapping[str, Any] | Tensor | Dataset | DataLoader | None = None, **options: Any
) -> Outliers:
    """A generator by name with its options, from a config, or over the user's own data; None means "auto"."""
    if spec is None:
        spec = "auto"
    if isinstance(spec, str):
        return lookup(spec).build(options)
    if isinstance(spec, Tensor | Dataset | DataLoader):
        return FromData.build({"data": spec, **options})
    if options:
        raise InputError(
            explain("options", ", ".join(options), "none beside a finished generator or config", "Set them in there.")
        )
    if isinstance(spec, Outliers):
        return spec
    if isinstance(spec, Mapping):
        return Outliers.from_config(spec)
    raise InputError(
        explain("outliers", type(spec).__name__, f"a generator, a data set, or one of: {', '.join(sorted(REGISTRY))}")
    )
