"""Ways to get a prediction and a score: the attachments and every method that they are compared with.

Each file without an underscore is one method; a new one is found by being there (docs/adding-a-method.md).
"""

from __future__ import annotations

import importlib
import pkgutil

from abnn.baselines._trained import Trained, load_trained
from abnn.baselines._training import train_method, train_seeds
from abnn.baselines.base import REGISTRY, Method, Run, Stage, make_method

__all__ = [
    "REGISTRY",
    "Method",
    "Run",
    "Stage",
    "Trained",
    "load_trained",
    "make_method",
    "train_method",
    "train_seeds",
]

for _file in pkgutil.iter_modules(__path__):
    if not _file.ispkg and not _file.name.startswith("_"):
        importlib.import_module(f"{__name__}.{_file.name}")
