"""How far a training run is, its last good state, and the checkpoint from which it goes on."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.errors import AbnnWarning, FileFormatError, InputError, explain
from abnn.tensors import read_tree, write_tree
from abnn.train.trainable import History, Trainable

FORMAT = "abnn-checkpoint-6"


class Run:
    """How far a run is, and its checkpoint.

    settings  say which run this is, so that no other run goes on from its checkpoint
    path      of the checkpoint; None: none is written
    """

    def __init__(self, trainable: Trainable, settings: dict[str, Any], path: Path | None) -> None:
        self.trainable, self.path = trainable, path
        self.digests = {name: _digest(value) for name, value in settings.items()}
        self.epoch, self.step = 0, 0
        self.sums: dict[str, float] = {}
        self.history = History()
        self.keep()

    def keep(self) -> None:
        """Remember the values as the last good ones."""
        self.good = {name: value.detach().clone() for name, value in self.trainable.values().items()}

    def finite(self) -> bool:
        """Return whether all values are numbers. The host waits once for each device.

        There may be several devices: blocks that were replaced stay where they were.
        """
        by_device: dict[torch.device, list[Tensor]] = {}
        for value in self.trainable.values().values():
            if value.is_floating_point():
                by_device.setdefault(value.device, []).append(value.detach().isfinite().all())
        return all(bool(torch.stack(each).all()) for each in by_device.values())

    def restore(self, values: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self.trainable.values().items():
                value.copy_(values[name])

    def broadcast(self, fabric: Any) -> None:
        """Take the values and the digests of the first process: it decides whether a checkpoint is of this run."""
        self.digests = fabric.broadcast(self.digests)
        self.restore({name: fabric.broadcast(value.detach()) for name, value in self.trainable.values().items()})
        self.keep()

    def save(self) -> None:
        if self.path is None:
            return
        tree = {
            "format": FORMAT,
            "settings": self.digests,
            "epoch": self.epoch,
            "step": self.step,
            "sums": self.sums,
            "history": self.history.rows,
            "values": self.trainable.values(),
            "good": self.good if self.step else None,  # None: the values themselves
            "more": self.trainable.more(),
            "optimizers": {name: each.state_dict() for name, each in self.trainable.optimizers.items()},
            "threads": torch.get_num_threads(),
        }
        write_tree(self.path, tree)

    def resume(self) -> None:
        """Go on from the checkpoint if there is one. One of another run, or a file of another kind, is an error."""
        if self.path is None or not self.path.exists():
            return
        tree = read_tree(self.path)
        if not isinstance(tree, dict) or tree.get("format") != FORMAT:
            raise FileFormatError(
                f"checkpoint: {self.path} is not a checkpoint of this version of the package; choose another file, or "
                "delete it to start anew."
            )
        stored = tree.get("settings")
        stored = stored if isinstance(stored, dict) else {}
        if names := sorted(name for name in {**stored, **self.digests} if stored.get(name) != self.digests.get(name)):
            actual = f"{self.path}, written by a run with other settings ({', '.join(names)})"
            same = "the same settings"
            if "data" in names:
                same += " and a loader of the same data, in the same order and in batches of the same size,"
            fix = f"Give {same} as then, choose another file, or delete it to start anew."
            raise InputError(explain("checkpoint", actual, "a checkpoint of the same run", fix))
        self._warn_of_threads(tree.get("threads"))
        try:
            self._take(tree)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            self.restore(self.good)
            raise FileFormatError(
                f"checkpoint: {self.path} does not hold what this run needs ({type(error).__name__}: "
                f"{str(error)[:200]}); delete it to start anew."
            ) from error

    def _take(self, tree: dict[str, Any]) -> None:
        self.restore(tree["values"])
        self.trainable.restore_more(tree["more"])
        for name, optimizer in self.trainable.optimizers.items():
            optimizer.load_state_dict(tree["optimizers"][name])
        self.epoch, self.step, self.sums = tree["epoch"], tree["step"], tree["sums"]
        self.history = History(tree["history"])
        self.keep()
        self.good = tree.get("good") or self.good

    def _warn_of_threads(self, before: int | None) -> None:
        """Warn where the run will not end bit for bit as one that was not stopped.

        before  how many threads wrote the checkpoint; None: the file does not say
        """
        threads = torch.get_num_threads()
        if before not in (None, threads):
            text = (
                f"checkpoint: {self.path} was written with {before} threads, and the run goes on with {threads}. Sums "
                "are rounded in another order, so the result is not that of a run with one count. Set OMP_NUM_THREADS "
                f"or torch.set_num_threads({before}) to have it bit for bit."
            )
            warnings.warn(text, AbnnWarning, stacklevel=7)  # of fit()


def _digest(settings: Any) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
