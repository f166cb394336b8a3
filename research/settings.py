"""With which hyper-parameters and for how many epochs each method is trained on each data set, where its own do not fit.

Keys are "method" or "method:variant", and "default" for all others. What is not named here is the method's own: most methods
come with the settings of the authors' MNIST runs. "paper" and "authors" are variants of :mod:`abnn.baselines`.
"""

from __future__ import annotations

from typing import Any

from abnn.baselines.base import AUTHORS_NOISE
from abnn.baselines.sde_net import SDENetMethod

Settings = dict[str, dict[str, Any]]

# The embedded digits have 17 batches per epoch where the methods' references have hundreds.
QUICK: dict[str, Any] = {"lr": 1e-2, "optimizer": "adamw", "schedule": "cycle", "kaiming": False}
DIGITS: Settings = {
    **{name: QUICK for name in ("threshold", "mc-dropout", "deep-ensemble", "oe")},
    "sde-net": {**QUICK, "diffusion_lr": 1e-2},
    "woods": {**QUICK, "tune_lr": 1e-2},
    "woods:authors": {**QUICK, "tune_lr": 1e-1, "tune_schedule": "cycle"},
    "bbp": {"lr": 1e-2, "schedule": "cycle"},
    "vboe": {"lr": 1e-2, "schedule": "cycle", "kaiming": False},
    # The posterior of 56,000 weights given 1,077 inputs under the reference's prior is the prior, more or less.
    "p-sgld": {"lr": 3e-3, "prior_sigma": 1.0, "temperature": 0.02, "kaiming": False},
    "abnn": QUICK,
    "abnn:paper": {**QUICK, "attachment_lr": 1e-2, "attachment_schedule": "cycle"},
    "abnn:authors": {**QUICK, "attachment_lr": 1e-2, "attachment_schedule": "cycle"},
}
DIGITS_EPOCHS = {"default": 30}

MNIST: Settings = {}
MNIST_EPOCHS = {"default": 40}

SVHN: Settings = {
    **{name: {"schedule": "thirds"} for name in ("threshold", "mc-dropout", "deep-ensemble")},
    "sde-net": {**SDENetMethod.variants["svhn"], "schedule": "thirds"},
    "woods:authors": {"tune_lr": 1e-2},  # with 1e-3 the authors' run reached an accuracy of 59 %
    "abnn:authors": {
        "outliers": {**AUTHORS_NOISE, "scale": 2.0},
        "attachment_schedule": "fifths",
        "schedule": "fifths",
    },
}
SVHN_EPOCHS = {
    "default": 40,
    **{name: 60 for name in ("threshold", "mc-dropout", "deep-ensemble", "sde-net")},
    "abnn:authors": 25,
}

CAT_DOG: Settings = {
    "woods:authors": {"tune_lr": 1e-2},
    "abnn:authors": {"objective": {"alpha": 0.2}},
}
CAT_DOG_EPOCHS = {"default": 40, "bbp": 80, "sde-net": 80}
