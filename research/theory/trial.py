"""The same frozen digit reader with the same attachments, and nothing different but what they are taught.

A small network learns handwritten digits. Attachments are fitted beside it for a few epochs, with outliers made from those
digits, once for each objective; photographs, which none of them saw, show what has become of predictions on outliers. Everything
goes through `abnn.fit`, so these are the losses that users get.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from abnn.attached import Attached, attach
from abnn.config import PRESETS, FitConfig, Objective, preset
from abnn.data.digits import DigitsData, load_digits
from abnn.evaluate.records import find_records
from abnn.metrics import auroc
from abnn.outliers import make_outliers
from abnn.scores import entropy, mutual_information
from abnn.train.fit import fit
from research.tables import MISSING, markdown_table

CLASSES, WIDTH, BACKBONE_EPOCHS, BACKBONE_LR = 10, 64, 10, 3e-3
EPOCHS, LR, BATCH, DRAWS = 5, 1e-3, 64, 20
SETTINGS = {"lr": LR, "batch": BATCH, "draws": DRAWS, "width": WIDTH, "backbone_epochs": BACKBONE_EPOCHS}
PLAIN = "plain network"
COLUMNS = {
    "confidence on made-up outliers": ("made_up_after", 2, "made_up_before"),
    "confidence on photographs": ("confidence_outliers", 2, "outliers_before"),
    "entropy there": ("entropy_outliers", 2, ""),
    "of it disagreement": ("disagreement_outliers", 3, ""),
    "confidence on digits": ("confidence_id", 2, ""),
    "accuracy": ("accuracy", 2, ""),
    "AUROC": ("auroc", 2, ""),
    "means moved, in sigmas": ("means_moved_in_sigmas", 2, ""),
    "sigma, after / before": ("sigma_ratio", 3, ""),
}
"""Key of the number, digits, and key of the same before fitting, if there is one."""
PRESET_NAMES = {
    "threshold": PLAIN,
    "abnn": "preset default",
    "abnn (authors)": "preset authors",
    "abnn (paper)": "preset paper",
}


@dataclass(frozen=True)
class Goal:
    """An objective, the outliers that it is taught with, and where the posterior starts."""

    objective: Objective
    outliers: str = "default"
    options: dict[str, Any] = field(default_factory=dict)


def _alone(**changes: Any) -> Objective:
    """The default with the paper's target in a step of its own: what is left to choose is the loss and its sign."""
    return Objective(target="uniform", together=False, draws=(1, 4, 4), distil=0.0, hide=0.0, kl_weight=1e-7, **changes)


def _as_in(preset: str) -> Goal:
    """Objective, outliers, prior and first posterior of a preset."""
    chosen = PRESETS[preset]
    return Goal(chosen.objective, preset, {name: chosen.attach[name] for name in ("prior", "init")})


GOALS: dict[str, Goal] = {
    "default": Goal(preset("default").objective),
    "cross-entropy to 1/K, minimised": Goal(_alone(outlier_loss="draws")),
    "cross-entropy to 1/K, maximised": Goal(_alone(outlier_loss="draws", maximise=True)),
    "the same on the authors' noise": Goal(_alone(outlier_loss="draws", maximise=True), "authors"),
    "BCE to 1/K, minimised": Goal(_alone(outlier_loss="bce")),
    "BCE to 1/K, maximised": Goal(_alone(outlier_loss="bce", maximise=True)),
    "authors' objective, noise, prior and start": _as_in("authors"),
    "paper's objective, noise, prior and start": _as_in("paper"),
}


def run_trial(seed: int = 0, epochs: int = EPOCHS, goals: Sequence[str] = tuple(GOALS)) -> dict[str, dict[str, float]]:
    """What each objective leaves, by name, for one seed."""
    data = load_digits(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = train_reader(data)
        with torch.no_grad():
            id_samples, outlier_samples = (backbone(part.x).softmax(1)[None] for part in (data.test, data.full))
        rows = {PLAIN: describe(id_samples, outlier_samples, data.test.y)}
        return rows | {name: run_goal(backbone, data, GOALS[name], seed, epochs) for name in goals}


def train_reader(data: DigitsData) -> nn.Module:
    """Three linear layers, since many small runs must fit into a minute."""
    sizes = (data.train.x[0].numel(), WIDTH, WIDTH)
    layers = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
    network = nn.Sequential(nn.Flatten(), *layers, nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.Adam(network.parameters(), BACKBONE_LR)
    for _ in range(BACKBONE_EPOCHS):
        for rows in torch.randperm(len(data.train.x)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(data.train.x[rows]), data.train.y[rows]).backward()
            optimizer.step()
    return network.eval()


def run_goal(backbone: nn.Module, data: DigitsData, goal: Goal, seed: int, epochs: int) -> dict[str, float]:
    linear = [name for name, module in backbone.named_modules() if isinstance(module, nn.Linear)]
    model = attach(backbone, data.train.x[:1], at=linear, seed=seed, **goal.options)
    maker = make_outliers(PRESETS[goal.outliers].outliers, **PRESETS[goal.outliers].outlier_options)
    maker.prepare(0.0, 1.0)
    made_up = maker(*data.test, torch.Generator().manual_seed(seed)).x
    means, sigmas = _posterior(model)
    before = {f"{name}_before": _confidence(model, x) for name, x in (("made_up", made_up), ("outliers", data.full.x))}
    fit(
        model,
        DataLoader(TensorDataset(*data.train), BATCH, shuffle=True),
        maker,
        epochs=epochs,
        lr=LR,
        seed=seed,
        progress=False,
        config=FitConfig(
            objective=goal.objective,
            schedule="constant",
            value_range=(0.0, 1.0),
            accelerator="cpu",
        ),
    )
    new_means, new_sigmas = _posterior(model)
    id_samples, outlier_samples = (model.predict(part.x, draws=DRAWS).samples for part in (data.test, data.full))
    return {
        **describe(id_samples, outlier_samples, data.test.y),
        **before,
        "made_up_after": _confidence(model, made_up),
        "sigma_before": sigmas.mean().item(),
        "sigma_after": new_sigmas.mean().item(),
        "sigma_ratio": (new_sigmas.mean() / sigmas.mean()).item(),
        "means_moved_in_sigmas": ((new_means - means).square().mean().sqrt() / sigmas.mean()).item(),
    }


def describe(id_samples: Tensor, outlier_samples: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, and confidence, entropy and disagreement in nats, from the predictions of all draws, [S, B, K]."""
    row = {"accuracy": (id_samples.mean(0).argmax(1) == y).double().mean().item()}
    for name, samples in (("id", id_samples), ("outliers", outlier_samples)):
        nats = math.log(samples.shape[2])
        row[f"confidence_{name}"] = samples.mean(0).amax(1).mean().item()
        row[f"entropy_{name}"] = nats * entropy(samples).mean().item()
        row[f"disagreement_{name}"] = nats * mutual_information(samples).mean().item()
    scores = [entropy(samples).double().numpy() for samples in (id_samples, outlier_samples)]
    return {**row, "auroc": auroc(*scores)}


def from_records(folder: Path, names: Mapping[str, str]) -> list[dict[str, dict[str, float]]]:
    """The same numbers for whole presets, from the run records of the comparison on the same digits: one dict per seed.

    ``names`` translates names of records into those of lines.
    """
    by_seed: dict[int, dict[str, dict[str, float]]] = {}
    for record in find_records(folder):
        if record.name not in names:
            continue
        sets = {each.tier: each for each in record.evaluation().sets}
        row = {"accuracy": record.numbers[f"accuracy.{sets['id'].name}"]}
        for name, tier in (("id", "id"), ("outliers", "full")):
            scores = sets[tier].scores
            row[f"confidence_{name}"] = 1 - float(scores["max-probability"].mean())
            row[f"entropy_{name}"] = math.log(CLASSES) * float(scores["entropy"].mean())
            disagreement = scores.get("mutual-information")
            row[f"disagreement_{name}"] = (
                0.0 if disagreement is None else math.log(CLASSES) * float(disagreement.mean())
            )
        row["auroc"] = auroc(sets["id"].scores["entropy"], sets["full"].scores["entropy"])
        by_seed.setdefault(record.seed, {})[names[record.name]] = row
    return [by_seed[seed] for seed in sorted(by_seed)]


def trial_table(trials: Sequence[Mapping[str, Mapping[str, float]]], names: Sequence[str]) -> str:
    """One line for each name, mean ± sample standard deviation over seeds, for the columns that there are."""

    def cell(name: str, key: str, digits: int, before: str) -> str:
        values, old = ([trial[name][k] for trial in trials if k in trial.get(name, {})] for k in (key, before))
        if not values:
            return MISSING
        first = f"{statistics.mean(old):.{digits}f} → " if old else ""
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{first}{statistics.mean(values):.{digits}f}{spread}"

    known = {key for trial in trials for row in trial.values() for key in row}
    columns = {head: column for head, column in COLUMNS.items() if column[0] in known}
    rows = [[name, *(cell(name, *column) for column in columns.values())] for name in names]
    return markdown_table(["", *columns], rows) + f"\nMean ± standard deviation over {len(trials)} seeds.\n"


def _confidence(model: Attached, x: Tensor) -> float:
    return model.predict(x, draws=DRAWS).samples.mean(0).amax(1).mean().item()


def _posterior(model: Attached) -> tuple[Tensor, Tensor]:
    means = torch.cat([layer.weight_mean.detach().flatten() for layer in model.layers])
    return means, torch.cat([layer.weight_sigma.detach().flatten() for layer in model.layers])
