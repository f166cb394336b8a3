"""The records of cells, each read once."""

from __future__ import annotations

import re
from pathlib import Path

from abnn.errors import InputError, explain
from abnn.evaluate.records import Record, read_record, record_path
from abnn.metrics import SeedSummary, over_seeds
from research.paper.cells import Cell


class Found:
    """What has been recorded so far below a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._known: dict[tuple[str, str], tuple[Record, ...]] = {}

    def of(self, cell: Cell) -> tuple[Record, ...]:
        """The records of a cell in the order of their seeds; none where it was not run.

        Runs with different settings have no common mean, so they are an error.
        """
        key = (cell.experiment, cell.name)
        if key not in self._known:
            self._known[key] = self._read(cell)
        return self._known[key]

    def over_seeds(self, cell: Cell, path: str) -> SeedSummary | None:
        """One metric over all seeds that have it."""
        values = [record.numbers[path] for record in self.of(cell) if path in record.numbers]
        return over_seeds(values) if values else None

    def _read(self, cell: Cell) -> tuple[Record, ...]:
        first = record_path(self.folder, cell.experiment, cell.name, 0)
        stem = first.stem.removesuffix("0")
        paths = [path for path in first.parent.glob(f"{stem}*.json") if re.fullmatch(r"\d+", path.stem[len(stem) :])]
        records = sorted((read_record(path) for path in paths), key=lambda record: record.seed)
        for record in records[1:]:
            if record.config != records[0].config:
                given = f"{records[0].path} and {record.path}, made with different settings"
                fix = "Delete the older ones, or run them again."
                raise InputError(explain("results", given, "the same settings for all seeds of a row", fix))
        return tuple(records)
