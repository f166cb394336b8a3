"""Records without files, and a table of them."""

from pathlib import Path
from typing import Any

from abnn.evaluate.records import Record, SetEntry
from research.tables import Column


def record(name: str, seed: int, experiment: str = "e", config: dict[str, Any] | None = None, **metrics: Any) -> Record:
    return Record(
        path=Path(f"{experiment}/{name}-seed{seed}.json"),
        experiment=experiment,
        name=name,
        seed=seed,
        score="entropy",
        config=config or {},
        thresholds=None,
        sets=(SetEntry("digits", "id", 10, ("entropy",), (), ""),),
        metrics=metrics,
        device="cpu",
        seconds={},
        written="2024-01-01T00:00:00+00:00",
        versions={},
        platform="",
        code={},
        arrays_file="",
        arrays_sha256="",
    )


TWO = [
    *(record("plain", seed, acc=value, ece=0.02) for seed, value in enumerate((0.90, 0.92, 0.94))),
    *(record("attached_1", seed, acc=value, ece=0.01) for seed, value in enumerate((0.95, 0.96, 0.97))),
]


COLUMNS = [Column("acc %", "acc"), Column("ECE", "ece", 1.0, 3, "lower")]
