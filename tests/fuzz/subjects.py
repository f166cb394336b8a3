"""One small good example of everything that is read from a file, and what reads it."""

from __future__ import annotations

import io
import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.baselines import TrainConfig, load_trained, train_method
from abnn.baselines.posthoc.model import PostHocModel
from abnn.data.arrays import ArraySource
from abnn.data.folders import FolderSource
from abnn.data.form import InputForm
from abnn.errors import FileFormatError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import read_record, write_record
from abnn.export import Exported
from abnn.networks.weights import read_weights
from abnn.predict import Plain
from abnn.store.saved import load_model
from abnn.train.checkpoint import Run
from abnn.train.trainable import Trainable
from abnn.triage.drift import DriftMonitor
from tests.fuzz.mutate import Files

RECIPE: dict[str, Any] = {"width": 4, "blocks": 1, "stem": "small", "kaiming": False}
CLASSES, DRAWS = 3, 2
EXPORTED = Path(__file__).parent / "exported.zip"
"""A table model as ``model.export`` wrote it: 4 numbers in, 2 classes. Kept, since reading it needs less than writing it."""
FORM = InputForm((1, 8, 8), torch.float32)


@dataclass(frozen=True)
class Subject:
    """Files that belong together, and what is read from them.

    read         returns what counts, as text or bytes that can be compared; must raise errors of the package only
    exact        the files have checksums: whatever is read without an error or a warning is what was written
    description  the JSON that holds checksums of all files, of folders
    """

    name: str
    files: Files
    read: Callable[[Path], Any]
    exact: bool = True
    description: str | None = None


@cache
def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(96, 1, 8, 8, generator=generator)
    return x, (x.mean((1, 2, 3)) * 100).long() % CLASSES


@cache
def backbone() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return abnn.build_backbone("paper-resnet", CLASSES, 1, **RECIPE).eval()


def loader(size: int = 32) -> DataLoader:
    return DataLoader(TensorDataset(*inputs()), batch_size=size)


def plain() -> Plain:
    return Plain(backbone(), inputs()[0][:1])


class Line(Trainable):
    """Fits a line, to have a checkpoint."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.network = nn.Linear(3, 2)
        self.optimizers = {"line": torch.optim.AdamW(self.network.parameters(), 0.1)}

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        loss = (self.network(x) - y).square().mean()
        loss.backward()
        self.optimizers["line"].step()
        return {"loss": loss.detach()}

    def values(self) -> dict[str, Tensor]:
        return dict(self.network.state_dict())


def make_samples(folder: Path) -> Path:
    """Write one good example of everything into ``folder``, each in a folder of its own, unless it is there already."""
    if (folder / "complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x, y = inputs()
        network = abnn.build_backbone("paper-resnet", CLASSES, 1, **RECIPE).eval()
        network.load_state_dict(backbone().state_dict())
        model = abnn.attach(network, x[:1])
        abnn.fit(model, loader(), epochs=1, progress=False)
        model.triage = abnn.Triage.calibrate(model, loader(96))
        model.save(folder / "model", backbone=True, extra={"class_names": ["a", "b", "c"]})
        start = {"name": "paper-resnet", "classes": CLASSES, "in_channels": 1, **RECIPE}
        train_method("threshold", start, loader(), 1, progress=False, config=TrainConfig(accelerator="cpu")).save(
            folder / "method"
        )
        PostHocModel(plain(), ("energy", "mahalanobis", "knn")).fit([(x, y)]).save(folder / "scores")
    monitor = DriftMonitor.from_scores(np.random.default_rng(0).normal(size=200))
    monitor.update(np.random.default_rng(1).normal(size=50))
    monitor.save(folder / "drift" / "drift.json")
    _write_record(folder / "record")
    pictures = np.random.default_rng(0).integers(0, 256, (20, 8, 8)).astype(np.uint8)
    for kind, write in (("arrays", np.savez), ("packed", np.savez_compressed)):
        (folder / kind).mkdir()
        write(folder / kind / "data.npz", images=pictures, labels=np.arange(20) % 3, names=np.array(["a", "b", "c"]))
    (folder / "features").mkdir()
    np.savez(folder / "features" / "data.npz", features=np.eye(8, dtype=np.float32), target=np.arange(8))
    (folder / "checkpoint").mkdir()
    line = Line()
    line.step(torch.ones(4, 3), torch.ones(4, 2), None)
    run = Run(line, {"rate": 0.1}, folder / "checkpoint" / "run.safetensors")
    run.epoch, run.step, run.sums = 1, 3, {"loss": 0.5}
    run.save()
    (folder / "weights").mkdir()
    torch.save(backbone().state_dict(), folder / "weights" / "net.pt")
    shutil.unpack_archive(EXPORTED, folder / "export")
    (folder / "complete").touch()
    return folder


def _write_record(folder: Path) -> None:
    rng = np.random.default_rng(0)
    sets = []
    for name, tier in (("own", "id"), ("other", "full")):
        probs = rng.dirichlet(np.ones(3), 30).astype(np.float32)
        scores = {"entropy": rng.random(30).astype(np.float32)}
        sets.append(SetResult(name, tier, probs, rng.integers(0, 3, 30), scores))
    path = write_record(Evaluation("net", "entropy", tuple(sets), (0.5, 0.7)), folder, "some")
    for file in path.parent.iterdir():
        shutil.move(file, folder / ("run.json" if file == path else file.name))
    path.parent.rmdir()


# -- what is read, in a form that can be compared ---------------------------------------------------------------------


def _facts(prediction: Any, verdicts: bool = False) -> Any:
    told = tuple(prediction.verdict) if verdicts else ()
    return prediction.probs.numpy().tobytes(), prediction.score.numpy().tobytes(), told


def _read_model(folder: Path) -> Any:
    model = load_model(folder)
    x = inputs()[0][:4].expand(4, *model.input_shape) if model.input_shape == (1, 8, 8) else model.example
    return _facts(model.predict(x), model.triage is not None)


def _read_method(folder: Path) -> Any:
    return _facts(load_trained(folder).predict(inputs()[0][:4], draws=DRAWS))


def _read_scores(folder: Path) -> Any:
    prediction = PostHocModel.load(folder, plain()).predict(inputs()[0][:4])
    return _facts(prediction), [(name, each.numpy().tobytes()) for name, each in prediction.own.items()]


def _read_drift(folder: Path) -> Any:
    monitor = DriftMonitor.load(folder / "drift.json")
    monitor.update([0.1, 5.0, -5.0])
    return repr(monitor.to_dict())


def _read_record(folder: Path) -> Any:
    record = read_record(folder / "run.json")
    evaluation = record.evaluation()
    return repr(record.numbers), [evaluation.levels(each).tobytes() for each in evaluation.sets], repr(evaluation)


def _read_arrays(folder: Path) -> Any:
    source = ArraySource(folder / "data.npz")
    try:
        values = source.raw(0, min(len(source), 1000))
        return source.kind, values.tobytes(), source.labels.tobytes(), source.class_names
    finally:
        source.close()


def _read_checkpoint(folder: Path) -> Any:
    line = Line()
    if not (folder / "run.safetensors").exists():
        raise FileFormatError("there is no checkpoint: the run starts anew")
    run = Run(line, {"rate": 0.1}, folder / "run.safetensors")
    run.resume()
    line.step(torch.ones(4, 3), torch.ones(4, 2), None)
    return {name: each.numpy().tobytes() for name, each in line.values().items()}, run.epoch, run.step, repr(run.sums)


def _read_weights(folder: Path) -> Any:
    return {name: each.numpy().tobytes() for name, each in read_weights(folder / "net.pt").items()}


def _read_export(folder: Path) -> Any:
    model = Exported(folder, threads=1)
    if model.input_shape != (4,):
        return model.description
    said = model.predict(np.linspace(-3, 3, 24, dtype=np.float32).reshape(6, 4))
    parts = {name: each.tobytes() for name, each in (said.parts or {}).items()}
    told = [None if each is None else each.tobytes() for each in (said.score, said.samples, said.label, said.stated)]
    return told, parts, said.verdict, repr(model.triage), repr(model.extra)


READERS: dict[str, tuple[Callable[[Path], Any], bool, str | None]] = {
    "model": (_read_model, True, "abnn.json"),
    "method": (_read_method, True, "method.json"),
    "scores": (_read_scores, True, "posthoc.json"),
    "export": (_read_export, True, "export.json"),
    "drift": (_read_drift, True, None),
    "record": (_read_record, False, None),
    "arrays": (_read_arrays, False, None),
    "packed": (_read_arrays, False, None),
    "features": (_read_arrays, False, None),
    "checkpoint": (_read_checkpoint, True, None),
    "weights": (_read_weights, False, None),
}
"""Who reads it, whether it has checksums, and the JSON that holds those. Data, records and foreign weights have none."""
if find_spec("onnxruntime") is None:  # a campaign counts these cases as skipped
    READERS.pop("export")


def open_samples(folder: Path) -> dict[str, Subject]:
    """Return the examples of a folder by name."""
    subjects = {}
    for name, (read, exact, description) in READERS.items():
        files = {file.name: file.read_bytes() for file in sorted((folder / name).iterdir())}
        subjects[name] = Subject(name, files, read, exact, description)
    return subjects


def write_files(folder: Path, files: Files) -> None:
    """Write files and special files into an emptied folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content[0] == "link":
            path.symlink_to(content[1])
        elif content[0] == "fifo":
            os.mkfifo(path)
        else:
            path.mkdir()


# -- pictures ---------------------------------------------------------------------------------------------------------


@cache
def pictures() -> tuple[tuple[str, bytes], ...]:
    """Small pictures of all documented formats in several modes, and files of other formats."""
    colours = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 10, 3)).astype(np.uint8))
    wide = Image.fromarray(np.random.default_rng(0).integers(0, 65536, (12, 10)).astype(np.uint16))
    exif = Image.Exif()
    exif[0x0112] = 6
    forms: list[tuple[str, Image.Image, dict[str, Any]]] = [
        *(("PNG", colours.convert(mode), {}) for mode in ("L", "RGB", "P", "RGBA", "1", "LA")),
        ("PNG", wide, {}),
        *(("JPEG", colours.convert(mode), {}) for mode in ("L", "RGB", "CMYK")),
        ("JPEG", colours, {"progressive": True, "exif": exif}),
        *(("BMP", colours.convert(mode), {}) for mode in ("L", "RGB", "1", "P")),
        ("GIF", colours.convert("P"), {}),
        ("GIF", colours, {"save_all": True, "append_images": [colours.rotate(90), colours.rotate(180)]}),
        ("WEBP", colours, {}),
        ("WEBP", colours.convert("RGBA"), {"lossless": True, "exif": exif}),
        *(("TIFF", colours, {"compression": each}) for each in (None, "tiff_lzw", "tiff_adobe_deflate", "jpeg")),
        ("TIFF", colours.convert("1"), {"compression": "group4"}),
        ("TIFF", wide, {}),
        *(("PPM", colours.convert(mode), {}) for mode in ("L", "RGB", "1")),
        *(
            (kind, colours, {})
            for kind in ("EPS", "PDF", "ICO", "TGA", "PCX", "SGI", "IM", "JPEG2000", "DDS", "SPIDER")
        ),
    ]
    files = []
    for kind, image, options in forms:
        buffer = io.BytesIO()
        try:
            image.save(buffer, kind, **options)
        except (OSError, KeyError, ValueError):  # not part of this build of Pillow
            continue
        files.append((kind, buffer.getvalue()))
    files.append(
        (
            "XML",
            b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        )
    )
    return tuple(files)


def read_picture(folder: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the pixels of a folder's one picture as inputs, and why it cannot be read."""
    chunk = FolderSource(folder).take(np.array([0]), FORM)
    return chunk.x.numpy().tobytes(), chunk.unreadable
