"""Every post-hoc score by its name."""

from __future__ import annotations

from typing import Any

from abnn.errors import InputError, explain, unknown
from abnn.methods.posthoc.ash import ASH
from abnn.methods.posthoc.base import PostHoc
from abnn.methods.posthoc.energy import Energy
from abnn.methods.posthoc.entropy import Entropy
from abnn.methods.posthoc.gen import GEN
from abnn.methods.posthoc.knn import KNN
from abnn.methods.posthoc.laplace import Laplace
from abnn.methods.posthoc.mahalanobis import Mahalanobis, MahalanobisBlocks
from abnn.methods.posthoc.max_logit import MaxLogit
from abnn.methods.posthoc.odin import ODIN
from abnn.methods.posthoc.react import ReAct
from abnn.methods.posthoc.relative_mahalanobis import RelativeMahalanobis, RelativeMahalanobisBlocks
from abnn.methods.posthoc.vim import ViM

POSTHOC: dict[str, type[PostHoc]] = {
    each.name: each
    for each in (
        Energy,
        MaxLogit,
        Entropy,
        GEN,
        KNN,
        Mahalanobis,
        RelativeMahalanobis,
        MahalanobisBlocks,
        RelativeMahalanobisBlocks,
        ViM,
        ODIN,
        ASH,
        ReAct,
        Laplace,
    )
}


def build_posthoc(name: str, **settings: Any) -> PostHoc:
    """A score by name, with its settings: ``build_posthoc("knn", neighbours=10)``."""
    if name not in POSTHOC:
        raise unknown("scores", name, POSTHOC)
    accepted = POSTHOC[name]().settings
    for setting in settings:
        if setting not in accepted:
            names = ", ".join(accepted) or "none"
            raise InputError(explain("settings", repr(setting), f"the settings of {name!r}: {names}"))
    return POSTHOC[name](**settings)
