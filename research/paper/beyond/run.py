"""Runs the measurements on the trained networks of a work folder, and keeps one JSON per task and seed.

``<output>/beyond/<task>-seed<seed>.json`` has one entry per part, with its settings, data hash, device, time and
provenance. Each is added as soon as it is known, so that a run goes on where it stopped.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abnn.baselines import Trained, load_trained
from abnn.data.digits import Labelled
from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.provenance import provenance
from abnn.evaluate.records import record_path, slug
from abnn.files import check_version, read_json, write_json
from research.compare import read_back
from research.data import open_source
from research.paper.beyond.parts import PARTS, SEED, Inputs, Part
from research.paper.cells import recorded_paths
from research.paper.rows import ours, threshold
from research.tasks import PLANS, read_all, usual_draws

EXPERIMENT = "beyond"
FORMAT, VERSION = "abnn-beyond", 1
TASKS = ("mnist", "svhn")
DIGITS = 5


@dataclass
class Beyond:
    """Measures what has no entry yet.

    output  folder of the records
    work    folder of the networks, as ``python -m research reproduce table4`` leaves them
    seeds   of their training
    root    where data sets by name are kept
    inputs  how many test inputs of each set, a fixed random choice; 0: all
    note    called with one line for each entry
    """

    output: Path
    work: Path
    seeds: Sequence[int] = range(5)
    root: Path | None = None
    inputs: int = 1000
    note: Callable[[str], None] = print
    _sets: dict[tuple[str, str], tuple[Labelled, str]] = field(default_factory=dict)

    def run(self, tasks: Sequence[str] = TASKS, parts: Sequence[str] = tuple(PARTS)) -> list[Path]:
        """The records, after measuring what they lack. A seed without networks is passed over, and said to be."""
        paths = []
        for task in tasks:
            for seed in self.seeds:
                path = record_path(self.output, EXPERIMENT, task, seed)
                folders = self._folders(task, seed)
                absent = [name for name, folder in folders.items() if not (folder / "method.json").exists()]
                if absent:
                    self.note(
                        f"beyond: {task}, seed {seed} left out: no network of {' and '.join(absent)} in {self.work}"
                    )
                elif missing := [part for part in parts if not self._known(path, task, part, folders)]:
                    models = {name: load_trained(folder) for name, folder in folders.items()}
                    for part in missing:
                        self._measure(path, task, seed, part, models, folders)
                paths += [path] * path.exists()
            self._sets.clear()  # one task at a time
        return paths

    def _measure(
        self, path: Path, task: str, seed: int, part: str, models: dict[str, Trained], folders: dict[str, Path]
    ) -> None:
        inputs, hashes = self._inputs(task, PARTS[part])
        for name, model in models.items():
            self._check_data(task, name, model, hashes)
            model.network.to("cuda" if torch.cuda.is_available() else "cpu")
        started = time.perf_counter()
        results = PARTS[part].measure(models, inputs)
        entry = {
            "config": self._config(task, part, folders),
            "usual_draws": {name: usual_draws(model) for name, model in models.items()},
            "data": {"sha256": hashes, "inputs": len(inputs.known.x)},
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            "seconds": round(time.perf_counter() - started, 1),
            **provenance(),
            "results": rounded(results),
        }
        record = read_entry(path) if path.exists() else {"parts": {}}
        record |= {"format": FORMAT, "version": VERSION, "experiment": EXPERIMENT, "name": task, "seed": seed}
        record["parts"][part] = entry
        write_json(path, record)
        self.note(f"beyond: {task}, seed {seed}: {part}, {entry['seconds']} s")

    def _known(self, path: Path, task: str, part: str, folders: dict[str, Path]) -> bool:
        entry = read_entry(path)["parts"].get(part) if path.exists() else None
        if entry is not None and entry["config"] != self._config(task, part, folders):
            fix = "Choose another output folder, or delete the old record."
            fault = f"{path}, whose part {part!r} was made with other settings or networks"
            raise InputError(explain("output", fault, "records of the same settings", fix))
        return entry is not None

    def _config(self, task: str, part: str, folders: dict[str, Path]) -> dict[str, Any]:
        """Everything that leads to a result; the networks by the hash of their weights and how they were trained."""
        networks = {
            name: {
                "sha256": hashlib.sha256((folder / "network.safetensors").read_bytes()).hexdigest(),
                "config": read_json(folder / "method.json")["extra"].get("config"),
            }
            for name, folder in folders.items()
        }
        networks["abnn"]["config"] = _as_scored(networks["abnn"]["config"])
        settings = {**PARTS[part].settings, "inputs": self.inputs or "all", "choice": SEED}
        return read_back({"task": task, "networks": networks, **settings})

    def _folders(self, task: str, seed: int) -> dict[str, Path]:
        cells = (threshold(task), ours(task))
        return {cell.name: self.work / cell.experiment / f"{slug(cell.name)}-seed{seed}" for cell in cells}

    def _inputs(self, task: str, part: Part) -> tuple[Inputs, dict[str, str]]:
        """What a part looks at, and the SHA-256 of each whole source."""
        plan = PLANS[task]
        known, hashes, others = None, {}, {}
        for name, tier, text in plan.tests:
            if tier != "id" and not part.others:
                continue
            if (task, text) not in self._sets:
                data, digest = read_all(open_source(text, self.root), tier, plan.shape, plan.classes)
                chosen = choice(len(data.x), self.inputs)
                self._sets[task, text] = Labelled(data.x[chosen], data.y[chosen]), digest
            data, hashes[text] = self._sets[task, text]
            if tier == "id":
                known = data
            else:
                others[name] = data.x
        assert known is not None
        return Inputs(known, others), hashes

    def _check_data(self, task: str, name: str, model: Trained, hashes: dict[str, str]) -> None:
        """The test data must be that of the record of the network."""
        config = model.extra.get("config") or {}
        expected = config.get("data", {}).get("parts", {})
        for text, digest in hashes.items():
            if expected.get(text, digest) != digest:
                fix = "Use the data that the networks were evaluated on, or train them again."
                fault = f"{text} with another content than the {name!r} network of {task} was recorded with"
                raise InputError(explain("data_root", fault, "the same data", fix))


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
                fault = f"entries {part!r} of {task!r} in {self.folder}, made with different settings"
                fix = "Delete the older records, or run them again."
                raise InputError(explain("results", fault, "the same settings for all seeds", fix))
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
        paths = recorded_paths(self.folder, EXPERIMENT, task)
        return sorted((read_entry(path) for path in paths), key=lambda record: record["seed"])


def choice(available: int, count: int) -> torch.Tensor:
    """Numbers of ``wanted`` inputs in their order, the same ones every time; 0 or too many: all."""
    if count == 0 or count >= available:
        return torch.arange(available)
    return torch.randperm(available, generator=torch.Generator().manual_seed(SEED))[:count].sort().values


def rounded(value: Any) -> Any:
    """Five significant digits: more than a thousand inputs give."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def read_entry(path: Path) -> dict[str, Any]:
    """One record, checked."""
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT or not isinstance(content.get("parts"), dict):
        raise FileFormatError(
            f"{path} is not a record of `python -m research reproduce beyond`; delete it, or choose another folder."
        )
    check_version(path, content, VERSION)
    return content


def _as_scored(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """Without the start, which is the other network and has its own entry."""
    return None if config is None else {k: v for k, v in config.items() if k != "start"}


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _settings(entry: dict[str, Any]) -> dict[str, Any]:
    """Without the weights, which differ from seed to seed."""
    networks = {name: each["config"] for name, each in entry["config"]["networks"].items()}
    return {**entry["config"], "networks": networks}
