"""Train attachments with somebody else's loop: transformers.Trainer, lightning.Trainer, or one of your own.

:class:`Learner` gives the losses of :func:`abnn.fit`; a callback tells it when training begins, which epoch it is, and when to learn the
score. Neither library is imported before its callback is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from abnn.integrations.learner import Learner
    from abnn.integrations.with_lightning import LightningCallback
    from abnn.integrations.with_transformers import TrainerCallback

_PLACES = {"Learner": "learner", "LightningCallback": "with_lightning", "TrainerCallback": "with_transformers"}
__all__ = ["Learner", "LightningCallback", "TrainerCallback"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'abnn.integrations' has no attribute {name!r}")
    return getattr(importlib.import_module(f"abnn.integrations.{_PLACES[name]}"), name)
