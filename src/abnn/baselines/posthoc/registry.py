"""Every post-hoc score by its name."""

from __future__ import annotations

from typing import Any

from abnn.baselines.posthoc.ash import ASH
from abnn.baselines.posthoc.base import PostHoc
from abnn.baselines.posthoc.energy import Energy
from abnn.baselines.posthoc.entropy import Entropy
from abnn.baselines.posthoc.gen import GEN
from abnn.baselines.posthoc.knn import KNN
from abnn.baselines.posthoc.laplace import Laplace
from abnn.baselines.posthoc.mahalanobis import Mahalanobis, MahalanobisBlocks
from abnn.baselines.posthoc.max_logit import MaxLogit
from abnn.baselines.posthoc.odin import ODIN
from abnn.baselines.posthoc.react import ReAct
from abnn.baselines.posthoc.relative_mahalanobis import RelativeMahalanobis, RelativeMahalanobisBlocks
from abnn.baselines.posthoc.vim import ViM
from abnn.errors import InputError, explain, unknown

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
