"""Made-up records in the place of hours of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import write_record
from research.metrics import summarise
from research.paper.cells import Cell
from research.tasks import PLANS

SMALL = {"name": "paper-resnet", "classes": 10, "in_channels": 1, "width": 8, "blocks": 2}
PLAIN = Cell("threshold", "mnist", epochs=1, backbone=SMALL)
OURS = Cell("abnn", "mnist", "abnn", options={"pretrain": 0.0}, epochs=1, start=PLAIN, backbone=SMALL)
"""Cells whose training takes a moment."""
STRANGENESS = {"id": 0.0, "semi": 1.0, "full": 2.0}


def fake_sets(task: str, seed: int, apart: float = 1.0, sizes: dict[str, int] | None = None) -> tuple[SetResult, ...]:
    """The sets of a task with normal scores, ``apart`` from tier to tier; one prediction in four is wrong, and less sure."""
    sets = []
    for number, (name, tier, _) in enumerate(PLANS[task].tests):
        rng = np.random.default_rng([seed, number])
        size = (sizes or {}).get(name, 40)
        labels = rng.integers(0, 2, size)
        right = np.arange(size) % 4 > 0
        probs = np.where((labels == 1) == right, 0.9, 0.1)[:, None] * [-1, 1] + [1, 0]
        scores = rng.normal(apart * STRANGENESS[tier] + 0.5 * ~right, 1.0).astype(np.float32)
        known = labels if tier != "full" else np.full(size, -1)
        sets.append(SetResult(name, tier, probs.astype(np.float32), known.astype(np.int64), {"score": scores}))
    return tuple(sets)


def fake_record(folder: Path, cell: Cell, seed: int = 0, apart: float = 1.0, **options: object) -> Path:
    """One record of a cell as `Runner` writes them."""
    sets = fake_sets(cell.task, seed, apart)
    config = {"cell": cell.name, **options}
    return write_record(
        Evaluation(cell.name, "score", sets, None, seed, config),
        folder,
        cell.experiment,
        arrays=False,
        summary=summarise,
    )
