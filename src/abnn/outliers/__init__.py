"""Outliers made from in-distribution inputs, or taken from a user's own data, with a severity in [0, 1] for each.

A new kind is one new file here, or anywhere else, with a subclass of :class:`Outliers` that has a ``name``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, overload

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from abnn.config import PRESETS
from abnn.errors import InputError, explain
from abnn.outliers.base import REGISTRY, Blend, Change, OutlierBatch, Outliers, lookup
from abnn.outliers.blobs import Backgrounds, Blobs
from abnn.outliers.leaves import Leaves
from abnn.outliers.mixtures import Auto, Graded, Mixed, Tabular, TwoTier
from abnn.outliers.noise import FeatureNoise, FeatureShuffle, Invert, Noise
from abnn.outliers.own import FromData
from abnn.outliers.patches import Patches
from abnn.outliers.ranges import layout_of, measure_range
from abnn.outliers.style import Style
from abnn.outliers.vocabulary import Vocabulary, vocabulary_of
from abnn.outliers.words import ChangedWords, DestroyedWords, Sentences, Tokens

__all__ = [
    "DEFAULT", "PRESET", "REGISTRY", "Auto", "Backgrounds", "Blend", "Blobs", "Change", "ChangedWords", "DestroyedWords",
    "FeatureNoise", "FeatureShuffle", "FromData", "Graded", "Invert", "Leaves", "Mixed", "Noise", "OutlierBatch", "Outliers",
    "Patches", "Sentences", "Style", "Tabular", "Tokens", "TwoTier", "Vocabulary", "layout_of", "make_outliers", "measure_range",
    "vocabulary_of",
]  # fmt: skip

DEFAULT = PRESETS["default"].outliers
"""The name of the outliers that are used where nothing else is said."""
PRESET = "preset"
"""As an argument: the outliers that belong to the model's preset, or to the method."""

for _module in pkgutil.iter_modules(__path__):  # every file, so that the kinds in it are registered
    importlib.import_module(f"{__name__}.{_module.name}")

Spec = str | Outliers | Mapping[str, Any] | Tensor | Dataset | DataLoader
"""A name, a generator, its config, or real outliers."""


@overload
def make_outliers(spec: None) -> None: ...
@overload
def make_outliers(spec: Spec = ..., **options: Any) -> Outliers: ...
def make_outliers(spec: Spec | None = DEFAULT, **options: Any) -> Outliers | None:
    """Return a generator by name with its options, from a config, or over the user's own data; for None, none."""
    if isinstance(spec, str):
        return lookup(spec).build(options)
    if isinstance(spec, Tensor | Dataset | DataLoader):
        return FromData.build({"data": spec, **options})
    if options:
        fix = "Set them in there."
        raise InputError(explain("options", ", ".join(options), "none beside a finished generator or config", fix))
    if spec is None or isinstance(spec, Outliers):
        return spec
    if isinstance(spec, Mapping):
        return Outliers.from_config(spec)
    accepted = f"a generator, a data set, None for none, or one of: {', '.join(sorted(REGISTRY))}"
    raise InputError(explain("outliers", type(spec).__name__, accepted))
