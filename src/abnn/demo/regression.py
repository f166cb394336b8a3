"""The embedded example of a regression: how far diabetes will have progressed in a year, and how sure that is.

442 patients with ten measurements each come with scikit-learn. A small network learns from half of them; attachments are fitted to the
same patients, widths and thresholds calibrated on a quarter, and the last quarter is what the numbers are about.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

from abnn.attached import Attached, attach
from abnn.evaluate.provenance import provenance
from abnn.files import write_bytes, write_json
from abnn.metrics import auroc, regression
from abnn.predict import NumberPrediction
from abnn.train.fit import fit
from abnn.triage import calibrate

TARGET, FEATURE = "progression after one year", "bmi"
STEPS, BATCH, RATE, HIDDEN = 600, 32, 1e-2, 50
MOVED = 3.0  # standard deviations
REACH = 8.0  # of the line that leaves the data, in standard deviations


@dataclass(frozen=True)
class Demo:
    """What the example leaves: the model, test patients with what it says about them, numbers, and a line out of the data."""

    model: Attached
    y: np.ndarray
    prediction: NumberPrediction
    numbers: dict[str, float]
    line: np.ndarray
    along: NumberPrediction


class Progression(nn.Module):
    """A network of one hidden layer; targets are about 150 with a spread of 77."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))

    def forward(self, x: Tensor) -> Tensor:
        return 150 + 77 * self.body(x)[:, 0]


def run_demo(seed: int = 0, progress: bool = True) -> Demo:
    """Return what the example leaves: train, attach, fit, calibrate and predict."""
    table = load_diabetes()
    random = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(table.target), generator=random)
    x, y = torch.tensor(table.data, dtype=torch.float32)[order], torch.tensor(table.target, dtype=torch.float32)[order]
    x = (x - x[:221].mean(0)) / x[:221].std(0)
    parts = [slice(0, 221), slice(221, 331), slice(331, None)]
    network = _train(x[parts[0]], y[parts[0]], seed)
    model = attach(network, x[:1], task="regression", seed=seed)
    fit(model, list(zip(x[parts[0]].split(BATCH), y[parts[0]].split(BATCH))), seed=seed, progress=progress)
    calibrate(model, [(x[parts[1]], y[parts[1]])], progress=progress)
    here, truth = x[parts[2]], y[parts[2]].numpy()
    signs = torch.randint(2, here.shape, generator=random) * 2 - 1
    ordinary, moved = (_say(model, each) for each in (here, here + MOVED * signs))
    low, high = (end[:, 0].numpy() for end in ordinary.interval(0.9))
    measured = regression(truth, ordinary.mean[:, 0].numpy(), ordinary.std[:, 0].numpy(), low, high)
    numbers = {
        **measured.to_dict(),
        "plain rmse": float(np.sqrt(np.mean((ordinary.plain[:, 0].numpy() - truth) ** 2))),
        "moved auroc": auroc(ordinary.score.numpy(), moved.score.numpy()),
        "accepted": float(np.mean([each == "accept" for each in ordinary.verdict])),
        "moved accepted": float(np.mean([each == "accept" for each in moved.verdict])),
    }
    line = torch.linspace(-REACH, REACH, 161)
    along = here.median(0).values.repeat(len(line), 1)
    along[:, table.feature_names.index(FEATURE)] = line
    return Demo(model, truth, ordinary, numbers, line.numpy(), _say(model, along))


def _say(model: Attached, x: Tensor) -> NumberPrediction:
    prediction = model.predict(x)
    assert isinstance(prediction, NumberPrediction)
    return prediction


def _train(x: Tensor, y: Tensor, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Progression(x.shape[1])
        optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=0.3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
        for _ in range(STEPS):
            rows = torch.randint(len(x), (BATCH,))
            loss = ((network(x[rows]) - y[rows]) / 77).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def write_demo(demo: Demo, folder: Path, seed: int) -> tuple[Path, Path]:
    """Write figure, record and model into a folder; return the paths of the figure and the model."""
    figure = folder / "regression.png"
    draw(demo, figure)
    record: dict[str, Any] = {"experiment": "demo regression", "data": "scikit-learn diabetes", "seed": seed}
    record |= {"metrics": demo.numbers, "device": "cpu", **provenance()}
    write_json(folder / f"regression-seed{seed}.json", record)
    return figure, demo.model.save(folder / "regression-model", backbone=True)


def draw(demo: Demo, path: Path) -> None:
    """Two pictures with bands: test patients in the order of their predictions, and a line that leaves the data."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(10, 4), layout="constrained")
    left, right = picture.subplots(1, 2)
    order = np.argsort(demo.prediction.mean[:, 0].numpy())
    for axes, place, said, pick in (
        (left, np.arange(len(order)), demo.prediction, order),
        (right, demo.line, demo.along, np.arange(len(demo.line))),
    ):
        mean, noise = said.mean[:, 0].numpy()[pick], said.aleatoric[:, 0].numpy()[pick]
        low, high = (end[:, 0].numpy()[pick] for end in said.interval(0.9))
        band = partial(axes.fill_between, place, alpha=0.35, linewidth=0)
        band(low, high, color="#56b4e9", label="90 % interval")
        band(mean - noise, mean + noise, color="#0072b2", label="noise alone")
        axes.plot(place, mean, color="#1f2933", linewidth=1, label="prediction")
    left.scatter(np.arange(len(order)), demo.y[order], s=9, color="#d55e00", label="target", zorder=3)
    left.set(xlabel="test patients, by prediction", ylabel=TARGET)
    right.axvspan(-2, 2, color="#dde2e8", alpha=0.6, linewidth=0, zorder=0, label="where most patients are")
    right.set(xlabel=f"{FEATURE}, in standard deviations", ylabel=TARGET)
    for axes in (left, right):
        axes.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    picture.savefig(buffer, format="png", dpi=110)
    write_bytes(path, buffer.getvalue())
