"""The embedded example: a digit reader with and without attachments, on data that comes with the dependencies.

Handwritten digits are in-distribution, printed digits semi-OOD, patches of photographs full-OOD. A small network is
trained on handwritten digits, then frozen; attachments are fitted on the same digits plus outliers made from them; both
are evaluated on all three tiers.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from abnn._version import __version__
from abnn.attached import Attached, attach, load
from abnn.config import preset
from abnn.data.digits import DigitsData, Labelled, load_digits
from abnn.errors import AbnnError, AbnnWarning
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import TIERS, Evaluation
from abnn.networks.by_name import build_backbone
from abnn.predict import Plain
from abnn.train.fit import fit
from abnn.train.watch import progress_bar
from abnn.triage import Triage, calibrate

FOLDER = Path("demo") / "model"  # where ``abnn demo`` leaves its model
BACKBONE: dict[str, Any] = {"width": 32, "blocks": 3, "stem": "small", "kaiming": False}
BACKBONE_EPOCHS, BACKBONE_LR = 25, 1e-2
EPOCHS: int | None = None  # as many as abnn.fit() chooses
BATCH = 64
COLUMNS = {
    "accuracy": "accuracy.handwritten digits",
    "AUROC id/semi": "tiers.auroc_id_below_semi",
    "AUROC semi/full": "tiers.auroc_semi_below_full",
    "AUROC id/full": "tiers.auroc_id_below_full",
    "accuracy on semi": "accuracy.printed digits",
}
"""What the table shows: titles, and where the numbers are in a record."""


@dataclass(frozen=True)
class Demo:
    """What the example leaves: both evaluations, and the model with its thresholds."""

    plain: Evaluation
    attached: Evaluation
    model: Attached
    triage: Triage


def run_demo(seed: int = 0, progress: bool = True) -> Demo:
    """Return what the whole example leaves, for one seed."""
    seconds: dict[str, float] = {}
    with _timed(seconds, "data"):
        data = load_digits(seed)
    backbone = build_backbone("paper-resnet", 10, 1, **BACKBONE)
    with _timed(seconds, "backbone"):
        train_backbone(backbone, data, seed, progress)
    plain, model = Plain(backbone, data.train.x[:1]), attach(backbone, data.train.x[:1], seed=seed)
    before = {**seconds}
    with _timed(seconds, "attachments"):
        history = fit(model, _loader(data.train, shuffle=True), epochs=EPOCHS, seed=seed, progress=progress)
    triage = calibrate(model, _loader(data.val), progress=progress)
    plain_triage = calibrate(plain, _loader(data.val), progress=False)
    tests = zip(("handwritten digits", "printed digits", "photographs"), TIERS, (data.test, data.semi, data.full))
    loaders = [(title, tier, _loader(part)) for title, tier, part in tests]
    evaluations = []
    for name, each, limits, spent in (
        ("plain network", plain, plain_triage, before),
        ("attached network", model, triage, seconds),
    ):
        with _timed(spent, "evaluation"):
            stated = limits.probabilities
            sets = tuple(evaluate_set(each, part, title, tier, stated=stated) for title, tier, part in loaders)
        config = _config(data, *((model, len(history.rows), triage.draws) if each is model else ()))
        evaluations.append(Evaluation(name, each.score, sets, (limits.notice, limits.reject), seed, config, spent))
    return Demo(evaluations[0], evaluations[1], model, triage)


def demo_model(quiet: bool = False) -> tuple[Attached, Path]:
    """Return the embedded digit reader and its folder: from ./demo/model, from the user's cache, or trained now and kept there."""
    cache = cache_folder() / f"digits-{__version__}"
    for folder in (FOLDER, cache):
        if (folder / "abnn.json").exists():
            # Of an older form, whose thresholds are left out, or damaged: train again.
            with contextlib.suppress(AbnnError, AbnnWarning), warnings.catch_warnings():
                warnings.simplefilter("error", AbnnWarning)
                return load(folder), folder
    print("Training the embedded digit reader once; this takes about a minute.")
    result = run_demo(progress=not quiet)
    extra = {"class_names": [str(digit) for digit in range(10)]}
    return load(result.model.save(cache, backbone=True, triage=result.triage, extra=extra)), cache


def cache_folder() -> Path:
    """Return $XDG_CACHE_HOME/abnn, by default ~/.cache/abnn."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "abnn"


def train_backbone(network: nn.Module, data: DigitsData, seed: int, progress: bool) -> None:
    """The plain digit reader: AdamW, one learning-rate cycle."""
    count = len(data.train.x) // BATCH
    with torch.random.fork_rng(devices=[]), progress_bar(disable=not progress) as bar:
        torch.manual_seed(seed)
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.reset_parameters()
        optimizer = torch.optim.AdamW(network.parameters(), BACKBONE_LR, weight_decay=1e-2)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, BACKBONE_LR, total_steps=BACKBONE_EPOCHS * count)
        task = bar.add_task("training the plain network", total=BACKBONE_EPOCHS * count, status="")
        network.train()
        for _ in range(BACKBONE_EPOCHS):
            for rows in torch.randperm(len(data.train.x))[: count * BATCH].split(BATCH):
                optimizer.zero_grad()
                loss = F.cross_entropy(network(data.train.x[rows]), data.train.y[rows])
                loss.backward()
                optimizer.step()
                cycle.step()
                bar.update(task, advance=1, status=f"loss {loss.item():.4g}")
    network.eval()


def _loader(part: Labelled, shuffle: bool = False) -> DataLoader:
    return DataLoader(TensorDataset(*part), batch_size=BATCH if shuffle else 256, shuffle=shuffle)


def _config(data: DigitsData, model: Attached | None = None, epochs: int = 0, draws: int = 0) -> dict[str, Any]:
    config: dict[str, Any] = {
        "data": {"name": "digits", "sha256": data.hash()},
        "backbone": {"name": "paper-resnet", **BACKBONE, "epochs": BACKBONE_EPOCHS, "lr": BACKBONE_LR, "batch": BATCH},
    }
    if model is not None:
        chosen = preset(model.preset)
        what = {"preset": model.preset, "kind": model.spec.kind, "at": model.block_names, "size": model.attachment_size}
        how = {"epochs": epochs, "lr": chosen.lr, "schedule": chosen.schedule, "draws": draws}
        config["attachments"] = {**what, **how}
    return config


@contextlib.contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds spent inside to a dict."""
    started = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - started
