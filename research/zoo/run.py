"""All networks of the zoo on their data, attached, fitted and calibrated with default settings.

    python -m research.zoo            measure what has no record yet; --table: only render

One record for each network, data set and seed: accuracy with and without attachments, and for every set of outliers the AUROC of the
default score and of the plain network's energy.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from abnn.metrics import auroc
from research.tables import markdown_table, update_between_markers
from research.zoo.data import JOBS, Job
from research.zoo.networks import FITS

SEEDS = (0, 1)
EPOCHS, BATCH, RATE = 20, 32, 2e-3
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def train(network: nn.Module, x: Tensor, y: Tensor, seed: int, epochs: int | None = None, batch: int = BATCH) -> None:
    """A plain training, as users do it: Adam with one cycle of the rate."""
    epochs = EPOCHS if epochs is None else epochs
    torch.manual_seed(seed)
    steps = epochs * -(-len(x) // batch)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    network.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(batch):
            if len(rows) == 1:  # normalisation over a batch needs two
                rows = rows.repeat(2)
            loss = F.cross_entropy(network(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    network.eval()


def measure(name: str, data: str, build: Callable[[], nn.Module], seed: int) -> dict[str, Any]:
    """Return the record of one fit."""
    job: Job = JOBS[data](seed)
    torch.manual_seed(seed)
    network = build().to(DEVICE)
    train(network, job.train[0].to(DEVICE), job.train[1].to(DEVICE), seed)
    x, y = job.test[0].to(DEVICE), job.test[1]
    with torch.no_grad():
        plain = torch.cat([network(part) for part in x.split(200)])
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", abnn.errors.AbnnWarning)
        model = abnn.attach(network, job.train[0][:1].to(DEVICE), seed=seed)
        history = abnn.fit(model, DataLoader(TensorDataset(*job.train), BATCH, shuffle=True), seed=seed, progress=False)
        fitted = time.perf_counter()
        abnn.calibrate(model, DataLoader(TensorDataset(*job.calibrate), 200), progress=False)
    calibrated = time.perf_counter()
    prediction = model.predict(x)

    def scores(x: Tensor, name: str) -> np.ndarray:
        return model.predict(x.to(DEVICE)).score_by(name).cpu().numpy()

    found = {}
    for kind, outliers in job.outliers.items():
        found[kind] = {
            name: auroc(prediction.score_by(name).cpu().numpy(), scores(outliers, name))
            for name in ("combined", "energy")
        }
        found[kind]["accepted"] = float(
            np.mean([each == "accept" for each in model.predict(outliers.to(DEVICE)).verdict])
        )
    losses = [value for row in history.rows for value in row.values()]
    return {
        "network": name, "data": data, "seed": seed, "device": DEVICE, **provenance(),
        "weights": sum(each.numel() for each in network.parameters()), "attachments": model.attachment_size, "at": model.block_names,
        "accuracy": float((prediction.label.cpu() == y).float().mean()), "plain accuracy": float((plain.argmax(1).cpu() == y).float().mean()),
        "accepted": float(np.mean([each == "accept" for each in prediction.verdict])),
        "finite": bool(np.isfinite(losses).all()), "found": found, "warnings": sorted({str(each.message) for each in caught}),
        "seconds": {"fit": fitted - started, "calibrate": calibrated - fitted},
    }  # fmt: skip


def table(records: list[dict[str, Any]]) -> str:
    """One row for each network and data set, means over seeds, and one sentence about the worst."""
    if not records:
        return "No numbers are recorded yet.\n"
    rows = []
    for name, data, _ in FITS:
        own = [each for each in records if (each["network"], each["data"]) == (name, data)]
        if own:
            gains = [each["combined"] - each["energy"] for record in own for each in record["found"].values()]
            accuracy, plain = (100 * np.mean([each[key] for each in own]) for key in ("accuracy", "plain accuracy"))
            means = [
                100 * np.mean([each[key] for r in own for each in r["found"].values()])
                for key in ("combined", "energy")
            ]
            share = max(each["attachments"] / each["weights"] for each in own)
            rows.append(
                [
                    name,
                    data,
                    str(len(own)),
                    *(f"{n:.1f}" for n in (accuracy, plain, *means, 100 * min(gains), 100 * share)),
                ]
            )
    lost = [100 * (each["plain accuracy"] - each["accuracy"]) for each in records]
    gains = [100 * (each["combined"] - each["energy"]) for r in records for each in r["found"].values()]
    heads = ["network", "data", "seeds", "accuracy", "plain", "AUROC", "energy's", "least gain", "weights, %"]
    sentence = (
        f"{len(records)} fits: accuracy lost {np.mean(lost):.2f} points on average, {max(lost):.2f} at worst; AUROC against an outlier set "
        f"{np.mean(gains):+.1f} points over the energy's on average, {min(gains):+.1f} at worst, below -0.3 in "
        f"{sum(gain < -0.3 for gain in gains)} of {len(gains)}; losses not finite in {sum(not each['finite'] for each in records)}."
    )
    return f"{markdown_table(heads, rows)}\n{sentence}\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m research.zoo", description=__doc__)
    parser.add_argument(
        "--table", action="store_true", help="only put the table of what was recorded into the document"
    )
    parser.add_argument("--output", type=Path, default=Path("results/zoo"))
    parser.add_argument("--into", type=Path, default=Path("docs/zoo.md"))
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth fit from the Ith on, to share them out")
    options = parser.parse_args(arguments)
    first, step = (int(each) for each in options.part.split("/"))
    fits = [(seed, *fit) for seed in SEEDS for fit in FITS]
    for seed, name, data, build in [] if options.table else fits[first::step]:
        path = options.output / f"{name}-{data}-seed{seed}.json".replace(" ", "-")
        if not path.exists():
            write_json(path, measure(name, data, build, seed))
            print(path, flush=True)
    paths = sorted(options.output.glob("*.json")) if options.output.is_dir() else []
    text = table([json.loads(path.read_text()) for path in paths])
    if options.table:
        update_between_markers(options.into, "zoo", text)
    else:
        print(text)
