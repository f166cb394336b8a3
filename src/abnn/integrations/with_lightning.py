"""Attachments in ``lightning.Trainer``."""

from __future__ import annotations

from typing import Any

from abnn.errors import import_extra
from abnn.integrations.learner import Learner

Callback: Any = import_extra("lightning.pytorch", "lightning", "lightning").Callback


class LightningCallback(Callback):
    """Tells a learner when training begins and ends: ``lightning.Trainer(callbacks=[LightningCallback(learner)])``.

    The module's ``training_step`` returns ``learner(x, y)["loss"]``, or ``learner(**batch)["loss"]``.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.learner.begin(trainer.train_dataloader)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.learner.begin_epoch(trainer.current_epoch)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.learner.finish(trainer.train_dataloader)
