"""Fit what `abnn demo photos` ships: attachments, score and thresholds of EfficientNet-Lite0, all 1,000 classes.

    python -m research.photos --images IMAGES [IMAGES ...] --textures TEXTURES --drawings DRAWINGS

IMAGES are zip files or folders with CLASS/*.JPEG, CLASS being the number of an ImageNet class: validation images, cut to the middle
square of 7/8 of the shorter side. Of each class three fifths are for fitting, one fifth for thresholds and one fifth for the record.
The shares of good photographs that may be noticed and rejected are the first of ``PROMISES`` that refuses half of the TEXTURES;
if none does, the last. DRAWINGS are only measured. No picture of :mod:`research.photos.table` is used here.

Writes the model's folder (below 2 MB) and the record results/photos/fit/efficientnet-lite0-seed0.json.
"""

from __future__ import annotations

import argparse
import hashlib
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import abnn
from abnn.config import TriageConfig
from abnn.data import InputForm, read_image
from abnn.data.images import EXTENSIONS
from abnn.demo.photos import FOLDER, PREPROCESS, SIDE, network
from abnn.errors import InputError, explain
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import write_record
from abnn.evaluate.summary import Numbers
from abnn.metrics import auroc
from abnn.triage.calibrate import choose, gather

CLASSES = Path(__file__).with_name("classes.txt").read_text().splitlines()
PROMISES = ((0.05, 0.01), (0.05, 0.02), (0.1, 0.05))
MOST_BYTES = 2_000_000
FORM = InputForm((3, SIDE, SIDE), torch.uint8)
INPUTS = InputForm((3, SIDE, SIDE), torch.float32, tuple(PREPROCESS["mean"]), tuple(PREPROCESS["std"]))
BATCH, FIT_BATCH = 50, 64


class Pictures(torch.utils.data.Dataset):
    """Pictures in 8 bits, as inputs of the network, with labels (-1: no class)."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return INPUTS.images(self.pixels[row].movedim(0, -1).numpy()[None])[0], self.labels[row]

    def loader(self, batch: int = BATCH, shuffled_by: torch.Generator | None = None) -> DataLoader[Any]:
        return DataLoader(self, batch, shuffle=shuffled_by is not None, generator=shuffled_by)

    def digest(self) -> str:
        return hashlib.sha256(self.pixels.numpy().tobytes() + self.labels.numpy().tobytes()).hexdigest()


def files(place: Path) -> Iterator[tuple[str, bytes | Path]]:
    """Yield (path inside, content or file) of every picture of a zip file or folder, sorted."""
    if place.is_dir():
        paths = sorted(each for each in place.rglob("*") if each.suffix.lower() in EXTENSIONS)
        yield from ((path.relative_to(place).as_posix(), path) for path in paths)
    else:
        with zipfile.ZipFile(place) as archive:
            names = sorted(name for name in archive.namelist() if Path(name).suffix.lower() in EXTENSIONS)
            yield from ((name, archive.read(name)) for name in names)


def read(places: Sequence[Path], labelled: bool, limit: int | None = None) -> Pictures:
    """Return all pictures of some places, each whole; the first folder of a path is its class if ``labelled``."""
    found = [each for place in places for each in files(place)]
    if labelled:
        found.sort(key=lambda each: (int(each[0].split("/")[0]), each[0]))
    found = found[:limit]
    with ThreadPoolExecutor(4) as pool:
        pixels = list(pool.map(lambda each: FORM.images(read_image(each[1], 3)[None])[0], found))
    labels = [int(name.split("/")[0]) if labelled else -1 for name, _ in found]
    return Pictures(torch.stack(pixels), torch.tensor(labels))


def split(pictures: Pictures, seed: int) -> tuple[Pictures, Pictures, Pictures]:
    """Return parts for fitting, for thresholds and for the record: of each class about three, one and one fifth."""
    rng, parts = np.random.default_rng(seed), ([], [], [])  # type: ignore[var-annotated]
    for label in pictures.labels.unique().tolist():
        rows = rng.permutation(torch.nonzero(pictures.labels == label).flatten().numpy())
        for part, some in zip(parts, np.split(rows, [len(rows) - 2 * (len(rows) // 5), len(rows) - len(rows) // 5])):
            part.extend(some.tolist())
    return tuple(Pictures(pictures.pixels[part], pictures.labels[part]) for part in parts)  # type: ignore[return-value]


def evaluate(model: Any, name: str, tier: str, pictures: Pictures) -> SetResult:
    """Return what the model says about a set; of its probabilities those of the true class and of the best other one."""
    result = evaluate_set(model, pictures.loader(), name, tier, shown=0)
    if not result.labelled:
        return replace(result, probs=result.probs.max(1, keepdims=True))
    others = result.probs.copy()
    places = np.arange(len(result)), result.labels
    others[places] = -1
    probs = np.stack([result.probs[places], others.max(1)], 1)
    return replace(result, probs=probs, labels=np.zeros_like(result.labels))


def run(options: argparse.Namespace) -> None:
    """Fit, choose thresholds, evaluate, and write the folder and the record."""
    device, seed, started = "cuda" if torch.cuda.is_available() else "cpu", options.seed, time.perf_counter()
    good = read(options.images, True, options.limit)
    if good.labels.unique().tolist() != list(range(len(CLASSES))) and options.limit is None:
        raise InputError(explain("--images", f"{len(good.labels.unique())} classes", f"all {len(CLASSES)}"))
    to_fit, to_calibrate, to_test = split(good, seed)
    textures, drawings = (read([place], False, options.limit) for place in (options.textures, options.drawings))
    times = {"reading": time.perf_counter() - started}
    started = time.perf_counter()
    model = abnn.attach(network().to(device), to_fit[0][0][None].to(device), seed=seed)
    model.extra = {"class_names": CLASSES, "preprocess": PREPROCESS}
    batches = to_fit.loader(FIT_BATCH, torch.Generator().manual_seed(seed))
    abnn.fit(model, batches, epochs=options.epochs, seed=seed)
    times["fitting"] = time.perf_counter() - started
    started = time.perf_counter()
    gathered = gather(model, to_calibrate.loader(), progress=True)
    sets = tuple(
        evaluate(model, name, tier, part)
        for name, tier, part in (
            ("photographs", "id", to_test),
            ("drawings", "semi", drawings),
            ("textures", "full", textures),
        )
    )
    far, tried = sets[-1].scores[gathered.score], {}
    for promise in PROMISES:
        model.triage = triage = choose(gathered, TriageConfig(*promise))
        tried[f"{promise[0]:g}, {promise[1]:g}"] = share = float((far > triage.reject).mean())
        if share >= 0.5:
            break
    times["evaluation"] = time.perf_counter() - started
    folder = model.save(options.into, example=False)
    size = sum(file.stat().st_size for file in folder.iterdir())
    if size > MOST_BYTES:
        raise InputError(explain("--into", f"{size:,} bytes", f"at most {MOST_BYTES:,}"))
    config = {
        "network": "efficientnet-lite0",
        "data": {"sha256": good.digest(), "fit": len(to_fit), "thresholds": len(to_calibrate), "test": len(to_test)},
        "epochs": options.epochs,
        "promise": [triage.noticed, triage.rejected],
        "textures refused by promise": tried,
        "bytes": size,
        "limit": options.limit,
    }
    limits = (triage.notice, triage.reject)
    evaluation = Evaluation("efficientnet-lite0", gathered.score, sets, limits, seed, config, times)
    print(write_record(evaluation, options.results, "fit", device, arrays=False, summary=shares))
    print(f"{folder}: {size:,} bytes, promise {config['promise']}", shares(evaluation), tried, times, sep="\n")


def shares(evaluation: Evaluation, by_score: bool = True) -> Numbers:
    """By set: the shares of verdicts, the accuracy where there are labels, and how well scores tell it from photographs."""
    assert evaluation.thresholds is not None
    scores = {each.name: each.scores[evaluation.score] for each in evaluation.sets}
    (notice, reject), ordinary = evaluation.thresholds, scores["photographs"]
    verdicts = {
        name: {
            "accept": float((values <= notice).mean()),
            "notice": float(((values > notice) & (values <= reject)).mean()),
            "reject": float((values > reject).mean()),
        }
        for name, values in scores.items()
    }
    accuracy = {each.name: float(each.correct.mean()) for each in evaluation.sets if each.labelled}
    detection = {name: auroc(ordinary, values) for name, values in scores.items() if name != "photographs"}
    return {"verdicts": verdicts, "accuracy": accuracy, "detection": detection}


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.photos", description=__doc__, formatter_class=form)
    parser.add_argument("--images", type=Path, nargs="+", required=True)
    parser.add_argument("--textures", type=Path, required=True, help="pictures of textures: a zip file or folder")
    parser.add_argument("--drawings", type=Path, required=True, help="pictures of outlines: a zip file or folder")
    parser.add_argument("--into", type=Path, default=FOLDER, help="the folder to write")
    parser.add_argument("--results", type=Path, default=Path("results/photos"), help="folder of the record")
    parser.add_argument("--epochs", type=int, help="default: as many as abnn.fit() chooses")
    parser.add_argument("--limit", type=int, help="so many pictures of each kind, for rehearsals")
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args(arguments))
