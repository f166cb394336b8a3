"""The records of the measurements, and the means over all seeds that have them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from abnn.errors import InputError, explain
from abnn.evaluate.records import record_path
from research.paper.beyond.run import EXPERIMENT, read_entry


class Measured:
    """What has been measured so far below a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._known: dict[str, list[dict[str, Any]]] = {}

    def of(self, task: str, part: str) -> list[dict[str, Any]]:
        """The entries of a part in the order of their seeds; measured differently, they have no common mean."""
        if task not in self._known:
            self._known[task] = self._read(task)
        entries = [record["parts"][part] for record in self._known[task] if part in record["parts"]]
        for entry in entries[1:]:
            if _settings(entry) != _settings(entries[0]):
                given = f"entries {part!r} of {task!r} in {self.folder}, made with different settings"
                fix = "Delete the older records, or run them again."
                raise InputError(explain("results", given, "the same settings for all seeds", fix))
        return entries

    def inputs(self, task: str, part: str) -> int:
        """How many inputs of each set were looked at; at most, for a set may be smaller."""
        return self.of(task, part)[0]["data"]["inputs"]

    def mean(self, task: str, part: str, *path: str) -> Any:
        """One number, or a list of them, averaged over the seeds that have it; None where no seed has."""
        values = [entry["results"] for entry in self.of(task, part)]
        for key in path:
            values = [value[key] for value in values]
        if isinstance(values[0], list):
            return [_mean(each) for each in zip(*values, strict=True)]
        return _mean(values)

    def _read(self, task: str) -> list[dict[str, Any]]:
        first = record_path(self.folder, EXPERIMENT, task, 0)
        stem = first.stem.removesuffix("0")
        paths = [path for path in first.parent.glob(f"{stem}*.json") if re.fullmatch(r"\d+", path.stem[len(stem) :])]
        return sorted((read_entry(path) for path in paths), key=lambda record: record["seed"])


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _settings(entry: dict[str, Any]) -> dict[str, Any]:
    """Without the weights, which differ from seed to seed."""
    networks = {name: each["config"] for name, each in entry["config"]["networks"].items()}
    return {**entry["config"], "networks": networks}
