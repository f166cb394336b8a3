"""Clip small Bayesian modules onto a trained network and learn when to trust its predictions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from abnn._version import __version__

if TYPE_CHECKING:
    from abnn.attached import Attached, attach, detach, load
    from abnn.bayes.layers import Init
    from abnn.bayes.priors import Gaussian, ScaleMixture
    from abnn.config import AttachConfig, FitConfig, Objective, TriageConfig, preset
    from abnn.estimators import AbnnClassifier, AbnnRegressor
    from abnn.networks.by_name import build_backbone
    from abnn.predict import Prediction
    from abnn.train.fit import fit
    from abnn.train.loss import loss
    from abnn.train.trainable import History
    from abnn.train.width import widen
    from abnn.triage import Triage, calibrate

_PLACES = {
    "AbnnClassifier": "abnn.estimators",
    "AbnnRegressor": "abnn.estimators",
    "AttachConfig": "abnn.config",
    "Attached": "abnn.attached",
    "FitConfig": "abnn.config",
    "Gaussian": "abnn.bayes.priors",
    "History": "abnn.train.trainable",
    "Init": "abnn.bayes.layers",
    "Objective": "abnn.config",
    "Prediction": "abnn.predict.prediction",
    "ScaleMixture": "abnn.bayes.priors",
    "Triage": "abnn.triage",
    "TriageConfig": "abnn.config",
    "attach": "abnn.attached",
    "build_backbone": "abnn.networks.by_name",
    "calibrate": "abnn.triage",
    "detach": "abnn.attached",
    "fit": "abnn.train.fit",
    "load": "abnn.attached",
    "loss": "abnn.train.loss",
    "preset": "abnn.config",
    "widen": "abnn.train.width",
}
"""Where the public names live. They are imported when first used: ``import abnn`` costs next to nothing."""
__all__ = [
    "AbnnClassifier",
    "AbnnRegressor",
    "AttachConfig",
    "Attached",
    "FitConfig",
    "Gaussian",
    "History",
    "Init",
    "Objective",
    "Prediction",
    "ScaleMixture",
    "Triage",
    "TriageConfig",
    "__version__",
    "attach",
    "build_backbone",
    "calibrate",
    "detach",
    "fit",
    "load",
    "loss",
    "preset",
    "widen",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'abnn' has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(_PLACES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from abnn.errors import MissingExtraError

        raise MissingExtraError("torch", "torch") from None
    return value


def __dir__() -> list[str]:
    return list(__all__)
