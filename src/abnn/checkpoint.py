"""Where a training run stands, its last good state, and the checkpoint from which it goes on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.errors import FileFormatError, InputError, explain
from abnn.files import read_tree, write_tree
from abnn.trainable import History, Trainable

FORMAT = "abnn-checkpoint-1"


class Run:
    """Where a run stands, and its checkpoint."""

    def __init__(self, trainable: Trainable, settings: dict[str, Any], path: Path | None) -> None:
        self.trainable, self.path = trainable, path
        self.digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}
        self.history = History()
        self.keep()

    def keep(self) -> None:
        """Remember the values as the last good ones."""
        self.good = {name: value.detach().clone() for name, value in self.trainable.values().items()}

    def finite(self) -> bool:
        """Whether all values are numbers; waits once for each device. Blocks that were replaced stay where they were."""
        found: dict[torch.device, list[Tensor]] = {}
        for value in self.trainable.values().values():
            if value.is_floating_point():
                found.setdefault(value.device, []).append(value.detach().isfinite().all())
        return all(bool(torch.stack(each).all()) for each in found.values())

    def restore(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.trainable.values().items():
                value.copy_(values[name])

    def broadcast(self, fabric: Any) -> None:
        """Start from the first process's values everywhere."""
        self.restore({name: fabric.broadcast(value.detach()) for name, value in self.trainable.values().items()})

    def save(self) -> None:
        if self.path is not None:
            tree = {
                "format": FORMAT,
                "digest": self.digest,
                "epoch": self.epoch,
                "step": self.step,
                "sums": self.sums,
                "history": self.history.rows,
                "values": self.trainable.values(),
                "more": self.trainable.more(),
                "optimizers": {name: each.state_dict() for name, each in self.trainable.optimizers.items()},
            }
            write_tree(self.path, tree)

    def resume(self) -> None:
        if self.path is None or not self.path.exists():
            return
        tree = read_tree(self.path)
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise FileFormatError(f"checkpoint: {self.path} is not a checkpoint of this package; choose another file.")
        if tree["digest"] != self.digest:
            raise InputError(
                explain(
                    "checkpoint",
                    f"{self.path}, written by a run with other settings",
                    "a checkpoint of the same run",
                    "Give the same settings as then, choose another file, or delete it to start anew.",
                )
            )
        self.restore(tree["values"])
        self.trainable.restore_more(tree["more"])
        for name, optimizer in self.trainable.optimizers.items():
            optimizer.load_state_dict(tree["optimizers"][name])
        self.epoch, self.step, self.sums = tree["epoch"], tree["step"], tree["sums"]
        self.history = History(tree["history"])
        self.keep()
