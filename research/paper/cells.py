"""Cells: the runs behind the rows of tables. A cell is trained, evaluated on all sets of its task, and recorded.

Several tables share cells, so that a network is trained once. Everything goes on where it stopped: a record that exists is
not made again, trained networks stay in the work folder, where other cells find what they start from, and a training that
was killed goes on from its last epoch.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from abnn.baselines import TrainConfig, Trained, load_trained, make_method
from abnn.baselines.deep_ensemble import Ensemble
from abnn.baselines.posthoc import PostHocModel, build_posthoc
from abnn.data import InputForm
from abnn.errors import InputError, explain
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import record_path, slug, write_record
from abnn.files import read_json
from abnn.predict import Plain
from abnn.train.loop import make_fabric
from research.compare import has_record, read_back
from research.data import open_source
from research.metrics import summarise
from research.records import rounded
from research.seeds import train_seeds
from research.tasks import Task, load_task

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Cell:
    """One row of a table.

    name      of the row and of its records
    task      "mnist", "svhn" or "cat-dog"
    method    with its variant and changed hyper-parameters; the task's own settings come between the two
    epochs    None: what the task says
    start     the cell of the same task whose networks, one for each seed, are the backbones here
    outliers  a source of real outliers, instead of made-up ones
    posthoc   a score of the start cell's networks instead of a method
    ensemble  all networks of the start cell together instead of a method; one record
    backbone  a recipe, instead of the task's
    """

    name: str
    task: str
    method: str = "threshold"
    variant: str = "reference"
    options: Mapping[str, Any] = field(default_factory=dict)
    epochs: int | None = None
    start: Cell | None = None
    outliers: str | None = None
    posthoc: str | None = None
    ensemble: bool = False
    backbone: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.start is None and (self.ensemble or self.posthoc):
            raise InputError(explain("start", "None", f"the cell that {self.name!r} takes its networks from"))

    @property
    def experiment(self) -> str:
        return f"paper-{self.task}"


@dataclass
class Runner:
    """Runs cells.

    output     folder of the records
    work       folder of networks and checkpoints
    seeds      of the runs
    root       where data sets by name are kept
    note       called with one line for each record
    """

    output: Path
    work: Path
    seeds: Sequence[int] = range(5)
    root: Path | None = None
    precision: str = "32-true"
    compile: bool = False
    accelerator: str = "auto"
    progress: bool = True
    note: Callable[[str], None] = print
    _tasks: dict[str, Task] = field(default_factory=dict)
    _real: dict[tuple[str, str], tuple[Tensor, str]] = field(default_factory=dict)

    def run(self, cells: Sequence[Cell]) -> list[Path]:
        """The records of cells, after making those that are missing."""
        for cell in cells:
            missing = self._missing(cell)
            if missing and cell.ensemble:
                self._ensemble(cell)
            elif missing and cell.posthoc is None:
                for seed, trained in zip(missing, self.networks(cell, missing)):
                    self._record(cell, seed, trained, trained.score, trained.extra)
        posthoc: dict[tuple[str, str], list[Cell]] = {}
        for cell in cells:
            if cell.posthoc is not None and cell.start is not None:
                posthoc.setdefault((cell.task, cell.start.name), []).append(cell)
        for group in posthoc.values():
            self._posthoc(group)
        paths = [record_path(self.output, cell.experiment, cell.name, seed) for cell in cells for seed in self.seeds]
        return [path for path in paths if path.exists()]

    def config(self, cell: Cell) -> dict[str, Any]:
        """Everything that leads to a result."""
        task = self.task(cell.task)
        method = self._method(cell)
        config = task.config(method, self._epochs(cell))
        config["precision"] = self.precision
        if cell.backbone is not None:
            config["backbone"] = dict(cell.backbone)
        if cell.outliers is not None:
            config["outliers"] = {"source": cell.outliers, "sha256": self._outliers(cell)[1]}
        if cell.start is not None:
            config["start"] = self.config(cell.start)
        if cell.posthoc is not None:
            config["posthoc"] = build_posthoc(cell.posthoc).settings
        if cell.ensemble:
            config["members"] = list(self.seeds)
        return read_back(config)

    def task(self, name: str) -> Task:
        if name not in self._tasks:
            self._tasks.clear()  # one at a time: the largest takes more than a gigabyte
            self._tasks[name] = load_task(name, root=self.root)
        return self._tasks[name]

    @cached_property
    def device(self) -> torch.device:
        return make_fabric(self.precision, self.accelerator, 1, 1).device

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type

    def networks(self, cell: Cell, seeds: Sequence[int]) -> list[Trained]:
        """The trained networks of a cell, from the work folder where they are there."""
        config = self.config(cell)
        new_seeds = [seed for seed in seeds if not self._kept(cell, seed, config)]
        if new_seeds:
            task = self.task(cell.task)
            backbone: Any = cell.backbone or task.backbone
            if cell.start is not None:
                backbone = [each.network.cpu() for each in self.networks(cell.start, new_seeds)]
            checkpoint = self._folder(cell, 0).with_name(f"{slug(cell.name)}.safetensors")
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            started = time.perf_counter()
            trained = train_seeds(
                self._method(cell),
                backbone,
                task.loader(),
                self._epochs(cell),
                seeds=new_seeds,
                outliers="preset" if cell.outliers is None else self._outliers(cell)[0],
                progress=self.progress,
                config=TrainConfig(
                    value_range=(0.0, 1.0),
                    precision=self.precision,
                    compile=self.compile,
                    accelerator=self.accelerator,
                    checkpoint=checkpoint,
                ),
            )
            seconds = {"training, all seeds at once": time.perf_counter() - started, "seeds at once": len(new_seeds)}
            for seed, each in zip(new_seeds, trained):
                each.extra |= {"config": config, "seconds": seconds, "device": self.device_name}
                each.recipe = each.recipe or dict(cell.backbone or task.backbone)
                each.save(self._folder(cell, seed))
            for seed in new_seeds:
                own = f"{slug(cell.name)}-seed{seed}"
                for pattern in (f"{own}.safetensors", f"{own}-*.safetensors"):
                    for file in checkpoint.parent.glob(pattern):
                        file.unlink()
        loaded = [load_trained(self._folder(cell, seed)) for seed in seeds]
        for each in loaded:
            each.network.to(self.device)
        return loaded

    def _ensemble(self, cell: Cell) -> None:
        """All networks of another cell as one model."""
        assert cell.start is not None
        task = self.task(cell.task)
        members = [each.network for each in self.networks(cell.start, list(self.seeds))]
        method = make_method("deep-ensemble", members=len(members))
        trained = Trained(method, Ensemble(members, None).eval(), task.train.x[:1], task.backbone["classes"])
        self._record(cell, self.seeds[0], trained, trained.score)

    def _posthoc(self, cells: Sequence[Cell]) -> None:
        """Scores of the same networks, in one pass over the data for all of them."""
        start = cells[0].start
        assert start is not None
        for seed in self.seeds:
            new_cells = [cell for cell in cells if seed in self._missing(cell)]
            if not new_cells:
                continue
            task, trained = self.task(start.task), self.networks(start, [seed])[0]
            started = time.perf_counter()
            example = task.train.x[:1].to(self.device)
            model = PostHocModel(Plain(trained.network, example), [str(cell.posthoc) for cell in new_cells])
            model.fit(task.loader())
            seconds = {"fitting, all scores at once": time.perf_counter() - started, "scores at once": len(new_cells)}
            started = time.perf_counter()
            sets = task.evaluate(model)
            seconds["evaluation"] = time.perf_counter() - started
            for cell in new_cells:
                self._write(cell, seed, str(cell.posthoc), sets, seconds, self.device_name)

    def _missing(self, cell: Cell) -> list[int]:
        """The seeds that have no record yet."""
        paths = {seed: record_path(self.output, cell.experiment, cell.name, seed) for seed in self.seeds}
        if cell.ensemble:
            first = self.seeds[0]
            return [] if self._has_ensemble(paths[first], self.config(cell)) else [first]
        return [seed for seed, path in paths.items() if not (path.exists() and has_record(path, self.config(cell)))]

    def _has_ensemble(self, path: Path, config: dict[str, Any]) -> bool:
        """Whether there is an ensemble of these networks, or of more; one of fewer is made again, which trains nothing."""
        if not path.exists():
            return False
        members = read_json(path).get("config", {}).get("members", [])
        return has_record(path, {**config, "members": members}) and set(self.seeds) <= set(members)

    def _record(self, cell: Cell, seed: int, model: Any, score: str, notes: Mapping[str, Any] = NOTHING) -> None:
        """Evaluate and write; a network that was trained on another device says so."""
        started = time.perf_counter()
        sets = self.task(cell.task).evaluate(model)
        seconds = {**notes.get("seconds", {}), "evaluation": time.perf_counter() - started}
        trained = notes.get("device", self.device_name)
        device = trained if trained == self.device_name else f"{trained}, evaluated on {self.device_name}"
        self._write(cell, seed, score, sets, seconds, device)

    def _write(
        self, cell: Cell, seed: int, score: str, sets: Sequence[SetResult], seconds: Mapping[str, float], device: str
    ) -> None:
        """One record; what the model said about every input is kept for the first seed of our own method alone."""
        keep = seed == self.seeds[0] and cell.method == "abnn" and cell.variant == "reference"
        own = tuple(replace(each, scores={score: each.scores[score]}) for each in sets)
        evaluation = Evaluation(cell.name, score, own, None, seed, self.config(cell), dict(seconds))
        target = self.output, cell.experiment, device
        write_record(rounded(evaluation, 12), *target, images=False, arrays=keep, summary=summarise)
        self.note(f"{cell.experiment}: {cell.name}, seed {seed}")

    def _method(self, cell: Cell) -> Any:
        return self.task(cell.task).method(cell.method, cell.variant, **cell.options)

    def _epochs(self, cell: Cell) -> int:
        return cell.epochs or self.task(cell.task).epochs_of(self._method(cell))

    def _outliers(self, cell: Cell) -> tuple[Tensor, str]:
        """Real outliers in the form of the task's inputs, and their SHA-256."""
        assert cell.outliers is not None
        key = (cell.task, cell.outliers)
        if key not in self._real:
            source = open_source(cell.outliers, self.root)
            form = InputForm(tuple(self.task(cell.task).train.x.shape[1:]))
            images = torch.cat([chunk.x for chunk in source.chunks(form, 4096)])
            self._real[key] = images, hashlib.sha256(images.numpy().tobytes()).hexdigest()
        return self._real[key]

    def _folder(self, cell: Cell, seed: int) -> Path:
        return self.work / cell.experiment / f"{slug(cell.name)}-seed{seed}"

    def _kept(self, cell: Cell, seed: int, config: dict[str, Any]) -> bool:
        description = self._folder(cell, seed) / "method.json"
        if not description.exists():
            return False
        return read_json(description).get("extra", {}).get("config", {}) == config


def recorded_paths(folder: Path, experiment: str, name: str) -> list[Path]:
    """Return the records of all seeds below a folder of results."""
    first = record_path(folder, experiment, name, 0)
    stem = first.stem.removesuffix("0")
    return [path for path in first.parent.glob(f"{stem}*.json") if re.fullmatch(r"\d+", path.stem[len(stem) :])]
