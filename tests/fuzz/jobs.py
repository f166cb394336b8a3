"""Things that write files: the commands fit, evaluate and score, saving, calibrating, exporting, and the state of a drift monitor."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image

import abnn
from abnn import cli, tensors
from abnn.errors import AbnnError
from abnn.evaluate import resume
from abnn.evaluate.records import find_records
from abnn.export import write
from abnn.export.schema import ExportedModel
from abnn.files import read_json
from abnn.store.folder import fingerprint, read_folder
from abnn.train.combine import gather, members
from abnn.triage.drift import DriftMonitor
from tests.fuzz.faults import in_child
from tests.fuzz.subjects import CLASSES, DRAWS, EXPORTED, RECIPE, inputs, loader

NAMES = ("fit", "evaluate", "save", "calibrate", "drift", "export", *(("score",) if find_spec("pyarrow") else ()))


@dataclass(frozen=True)
class Job:
    """Something that writes into a folder.

    prepare  puts into a new folder what is there before
    work     done, or done again
    state    what counts, to the bit, part by part; called before, after and in between, and raises where one is damaged
    """

    name: str
    prepare: Callable[[Path], Any]
    work: Callable[[Path], None]
    state: Callable[[Path], dict[str, Any]]


def network() -> Any:
    """Return the network of all jobs; ``abnn fit`` calls it by name."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return abnn.build_backbone("paper-resnet", CLASSES, 1, **RECIPE).eval()


def _command(*arguments: object) -> None:
    """Run ``abnn ARGUMENTS``; a status other than 0 is a SystemExit."""
    with mock.patch.object(sys, "argv", ["abnn", *map(str, arguments)]):
        try:
            cli.main()
        except SystemExit as end:
            if end.code not in (0, None):
                raise


def _model(folder: Path) -> str | None:
    """Return the digest of what a saved model holds; None where there is none."""
    if not folder.exists():
        return None
    model = abnn.load(folder, network())
    parameters = {name: each.detach().numpy().tobytes() for name, each in model.attachment_parameters()}
    triage = None if model.triage is None else json.dumps(model.triage.to_dict(), sort_keys=True)
    text = repr((sorted(parameters.items()), fingerprint(model.backbone), triage, model.extra))
    return hashlib.sha256(text.encode()).hexdigest()


def _page(path: Path) -> str | None:
    """Return that a page is whole; its text holds the time."""
    if not path.exists():
        return None
    assert path.read_text().rstrip().endswith("</html>")
    return "whole"


def _fit(samples: Path, pages: bool = True, seed: int = 1) -> Callable[[Path], None]:
    @mock.patch.object(members, "STEPS", 10)  # the learnt score takes most of the time, and writes nothing
    @mock.patch.object(gather, "OUTLIERS", 100)
    def work(folder: Path) -> None:
        _command(
            *("fit", "--backbone", f"{__name__}:network", "--data", samples / "pictures", "--output", folder / "out"),
            *("--checkpoint", folder / "run.safetensors", "--train-backbone", "--backbone-epochs", 2, "--epochs", 5),
            *("--batch-size", 16, "--draws", DRAWS, "--views", 1, "--held-out", 0.4, "--noticed", 0.2, "--seed", seed),
            *("--device", "cpu", "--accept-loss", "--quiet", "--report" if pages else "--no-report"),
        )

    return work


def _fit_state(folder: Path) -> dict[str, Any]:
    for checkpoint in folder.glob("*.safetensors"):
        tensors.read_tree(checkpoint)  # absent, or as it was written
    return {"model": _model(folder / "out" / "model"), "page": _page(folder / "out" / "report.html")}


def _save(folder: Path) -> None:
    model = abnn.attach(network(), inputs()[0][:1], draws=DRAWS, seed=5)
    model.save(folder / "model", backbone=True, extra={"new": True})


def _calibrate(folder: Path) -> None:
    model = abnn.load(folder / "model")
    model.triage = abnn.Triage.calibrate(model, loader(96), draws=DRAWS + 1)
    model.save(folder / "model", backbone=True)


def _evaluate(samples: Path, pages: bool) -> Callable[[Path], None]:
    def work(folder: Path) -> None:
        with mock.patch.object(resume, "BATCHES_PER_PART", 2):
            _command(
                *("evaluate", samples / "model", "--id", f"own={samples / 'arrays' / 'data.npz'}"),
                *("--full", f"other={samples / 'packed' / 'data.npz'}", "--output", folder / "out"),
                *("--batch-size", 4, "--device", "cpu", "--quiet", "--report" if pages else "--no-report"),
            )

    return work


def _evaluate_state(folder: Path) -> dict[str, Any]:
    place = folder / "out" / "records"
    records = find_records(place) if place.is_dir() else []
    numbers = [(each.arrays_sha256, each.numbers, len(each.evaluation().sets)) for each in records]
    return {"records": json.dumps(numbers) if numbers else None, "page": _page(folder / "out" / "report.html")}


def _export(folder: Path) -> None:
    """Export over an older export. What is written is made up: to trace a network takes seconds and writes nothing."""
    model = abnn.load(folder / "model")
    with mock.patch.object(write, "_write", lambda *_, **__: (b"new" * 10_000, {"x": [1, 8, 8]})):
        model.export(folder / "out", format="torch")


def _before_export(model: Path) -> Callable[[Path], Any]:
    return lambda folder: (_copy(model, "model")(folder), shutil.unpack_archive(EXPORTED, folder / "out"))


def _export_state(folder: Path) -> dict[str, Any]:
    out = folder / "out"
    return {"artefact": read_folder(out, ExportedModel).files if out.exists() else None}


def _score(samples: Path) -> Callable[[Path], None]:
    """Score pictures with a worker in this process: one of its own would not see the faults."""

    def run_workers(work: Any, shards: Sequence[int], *_: Any) -> Iterator[int]:
        scorer = import_module("abnn.batch.worker").Scorer(work)
        for number in shards:
            done = scorer({"item": [number]})
            if done["error"] != [""]:
                raise AbnnError(done["error"][0])
            yield number

    def work(folder: Path) -> None:
        with mock.patch("abnn.batch.job.run_workers", run_workers):
            _command(
                *("score", samples / "model", samples / "pictures", folder / "out"),
                *("--size", 40, "--batch-size", 20, "--device", "cpu", "--quiet"),
            )

    return work


def _score_state(folder: Path) -> dict[str, Any]:
    """Each part is whole or absent, and so is the summary."""
    import pyarrow.parquet as pq

    parts = [folder / "out" / f"part-{number:07d}.parquet" for number in range(3)]
    state = {path.name: repr(pq.read_table(path).to_pydict()) if path.exists() else None for path in parts}
    summary = folder / "out" / "_summary.json"
    return {**state, "summary": read_json(summary) if summary.exists() else None}


def _drift(folder: Path) -> None:
    monitor = DriftMonitor.load(folder / "drift.json")
    if monitor.seen == 50:
        monitor.update(np.linspace(0, 1, 20))
    monitor.save(folder / "drift.json")


def _copy(source: Path, name: str = ".") -> Callable[[Path], Any]:
    return lambda folder: shutil.copytree(source, folder / name, dirs_exist_ok=True)


def jobs(samples: Path, pages: bool = True) -> dict[str, Job]:
    """Return all jobs by name; without ``pages`` commands draw none, which takes most of their time.

    samples  as :func:`make_samples` and :func:`make_fitted` made them
    """
    model, fitted = samples / "model", samples / "fitted"
    for module in ("worker", "job") if "score" in NAMES else ():
        import_module(f"abnn.batch.{module}")  # once, and not in each fork
    every = (
        Job("fit", _copy(fitted, "out"), _fit(samples, pages), _fit_state),
        Job("evaluate", Path.mkdir, _evaluate(samples, pages), _evaluate_state),
        Job("save", _copy(model, "model"), _save, lambda folder: {"model": _model(folder / "model")}),
        Job("calibrate", _copy(model, "model"), _calibrate, lambda folder: {"model": _model(folder / "model")}),
        Job("export", _before_export(model), _export, _export_state),
        Job("score", Path.mkdir, _score(samples), _score_state),
        Job(
            "drift", _copy(samples / "drift"), _drift, lambda folder: DriftMonitor.load(folder / "drift.json").to_dict()
        ),
    )
    return {job.name: job for job in every}


def make_fitted(samples: Path, pages: bool = True) -> Path:
    """Write pictures to fit, and the output of an earlier ``abnn fit``, beside the other samples; return their folder."""
    if (samples / "fitted").exists():
        return samples
    x, y = inputs()
    for number, (picture, label) in enumerate(zip((x[:, 0] * 255).byte().numpy(), y.tolist())):
        (samples / "pictures" / "abc"[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(samples / "pictures" / "abc"[label] / f"{number}.png")
    with tempfile.TemporaryDirectory() as folder:
        status, answer = in_child(lambda: _fit(samples, pages, seed=2)(Path(folder)))
        assert status == 0, answer
        shutil.copytree(Path(folder) / "out", samples / "fitted")
    return samples
