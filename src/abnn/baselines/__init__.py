"""Ways to get a prediction and a score: the attachments and every method that they are compared with.

Each file without an underscore is one method; a new one is found by being there (docs/adding-a-method.md).
"""

from abnn.baselines._trained import Trained, load_trained
from abnn.baselines._training import TrainConfig, train_method
from abnn.baselines.base import REGISTRY, Method, Run, Stage, make_method
from abnn.baselines.options import import_all

__all__ = ["REGISTRY", "Method", "Run", "Stage", "TrainConfig", "Trained", "load_trained", "make_method"]
__all__ += ["train_method"]

import_all(__name__, __path__)
