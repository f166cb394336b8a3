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

_NAMES = {
    "abnn.attached": ("Attached", "attach", "detach", "load"),
    "abnn.bayes.layers": ("Init",),
    "abnn.bayes.priors": ("Gaussian", "ScaleMixture"),
    "abnn.config": ("AttachConfig", "FitConfig", "Objective", "TriageConfig", "preset"),
    "abnn.estimators": ("AbnnClassifier", "AbnnRegressor"),
    "abnn.networks.by_name": ("build_backbone",),
    "abnn.predict.prediction": ("Prediction",),
    "abnn.train.fit": ("fit",),
    "abnn.train.loss": ("loss",),
    "abnn.train.trainable": ("History",),
    "abnn.train.width": ("widen",),
    "abnn.triage": ("Triage", "calibrate"),
}
"""Where the public names live. They are imported when first used: ``import abnn`` costs next to nothing."""
_PLACES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = ["AbnnClassifier", "AbnnRegressor", "AttachConfig", "Attached", "FitConfig", "Gaussian", "History", "Init"]
__all__ += ["Objective", "Prediction", "ScaleMixture", "Triage", "TriageConfig", "__version__", "attach"]
__all__ += ["build_backbone", "calibrate", "detach", "fit", "load", "loss", "preset", "widen"]


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
