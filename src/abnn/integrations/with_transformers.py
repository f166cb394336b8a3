"""Attachments in ``transformers.Trainer``."""

from __future__ import annotations

from typing import Any

from abnn.errors import import_extra
from abnn.integrations.learner import Learner

Base: Any = import_extra("transformers", "transformers").TrainerCallback


class TrainerCallback(Base):
    """Tells a learner when training begins and ends: ``Trainer(learner, args, callbacks=[TrainerCallback(learner)])``."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def on_init_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """A learner takes what the network takes: columns must not be left out by what its own signature says."""
        args.remove_unused_columns = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.learner.begin(more["train_dataloader"])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.learner.begin_epoch(round(state.epoch or 0))

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self.learner.finish(more["train_dataloader"])
