"""Clip small Bayesian modules onto a trained network and learn when to trust its predictions."""

from abnn._version import __version__
from abnn.attach import attach, detach
from abnn.attached import Attached
from abnn.backbones import build_backbone
from abnn.fit import fit
from abnn.layers import Init
from abnn.objective import Objective, preset
from abnn.predict import Prediction
from abnn.priors import Gaussian, ScaleMixture
from abnn.store import load
from abnn.trainable import History
from abnn.triage import Triage

__all__ = [
    "Attached",
    "Gaussian",
    "History",
    "Init",
    "Objective",
    "Prediction",
    "ScaleMixture",
    "Triage",
    "__version__",
    "attach",
    "build_backbone",
    "detach",
    "fit",
    "load",
    "preset",
]
