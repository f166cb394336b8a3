"""Clip small Bayesian modules onto a trained network and learn when to trust its predictions."""

from abnn._version import __version__
from abnn.bayes.layers import Init
from abnn.bayes.priors import Gaussian, ScaleMixture
from abnn.model.attach import attach, detach
from abnn.model.attached import Attached
from abnn.model.objective import Objective, preset
from abnn.networks.by_name import build_backbone
from abnn.predict.prediction import Prediction
from abnn.store.model import load
from abnn.train.fit import fit
from abnn.train.trainable import History
from abnn.triage import Triage, TriageConfig, calibrate

__all__ = [
    "Attached",
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
    "preset",
]
