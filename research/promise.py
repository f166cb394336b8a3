"""Does the conformal promise hold where scores are equal, and whatever the size of a batch?

For each kind of input a small network is trained, gets attachments and is fitted. Then 800 other inputs of the same kind are
scored one by one, in batches of 7 and in batches of 400. In each of 200 random splits one half of them, scored in batches of
one size, chooses the threshold as :func:`abnn.calibrate` does; the other half, scored in batches of the same or another size,
is counted: by the model, and by the model as it was exported, with onnxruntime. The promise is kept if the mean share above the threshold is at most the promised one, up to two standard errors
of that mean.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import abnn
from abnn.config import FitConfig
from abnn.evaluate.provenance import provenance
from abnn.export import Exported
from abnn.networks.by_name import PaperResNet
from abnn.triage.calibrate import PROBES
from abnn.triage.thresholds import LEARNT, conformal_quantile, lift
from research.tables import markdown_table

SHARES = (0.01, 0.05)
BATCHES = (1, 7, 400)
RUNTIMES = ("torch", "onnx")
Scores = dict[int, np.ndarray]
"""The scores of the same inputs by the size of the batches in which they were scored."""
CONFIG: dict[str, Any] = {
    "fitted": 400,
    "good": 800,
    "splits": 200,
    "draws": None,
    "epochs": 2,
    "steps": 60,
    "lr": 1e-2,
}
WORDS, LENGTH = 6, 4


@dataclass(frozen=True)
class Kind:
    """Inputs of one kind: how to draw some with their classes, and a network that reads them."""

    about: str
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor]]
    network: Callable[[], nn.Module]


class Reader(nn.Module):
    """A small transformer that reads sentences."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


def _table_network() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))


def _image_network() -> nn.Module:
    return PaperResNet(width=8, blocks=2, classes=2, stem="small")


def _continuous(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 8, generator=generator)
    return x, (x[:, 0] + x[:, 1] > 0).long()


def _tied(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    rows = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    which = torch.multinomial(torch.tensor([0.5, 0.3, 0.15, 0.05]), count, replacement=True, generator=generator)
    return rows[which], which % 2


def _yes_no(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = (torch.rand(count, 8, generator=generator) < 0.3).float()
    return x, (x[:, :3].sum(1) > 1).long()


def _tokens(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    x = torch.randint(WORDS, (count, LENGTH), generator=generator)
    return x, (x.sum(1) > LENGTH * (WORDS - 1) / 2).long()


def _blank(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return torch.zeros(count, 1, 8, 8), torch.randint(2, (count,), generator=generator)


def _mostly_blank(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    drawn = torch.rand(count, generator=generator) < 0.1
    return torch.rand(count, 1, 8, 8, generator=generator) * drawn[:, None, None, None], drawn.long()


KINDS = {
    "continuous": Kind("rows of 8 normal numbers", _continuous, _table_network),
    "tied": Kind("4 different rows, of which one is half of all", _tied, _table_network),
    "discrete table": Kind("rows of 8 yes/no answers", _yes_no, _table_network),
    "tokens": Kind(f"sentences of {LENGTH} out of {WORDS} words", _tokens, Reader),
    "blank images": Kind("one image, all black", _blank, _image_network),
    "mostly blank images": Kind("nine of ten black, the others noise", _mostly_blank, _image_network),
}


def score_by_batch(
    kind: Kind, seed: int, config: dict[str, Any], runtimes: Sequence[str] = RUNTIMES
) -> dict[str, Scores]:
    """Return the scores of the same good inputs, by what computes and by the size of batches."""
    generator = torch.Generator().manual_seed(seed)
    (x, y), (good, _) = (kind.draw(config[count], generator) for count in ("fitted", "good"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = kind.network().train()
        optimizer = torch.optim.AdamW(network.parameters(), config["lr"])
        for _ in range(config["steps"]):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
        model = abnn.attach(network.eval(), x[:1], seed=seed)
        batches = list(zip(x.split(50), y.split(50)))
        abnn.fit(
            model, batches, epochs=config["epochs"], seed=seed, progress=False, config=FitConfig(accelerator="cpu")
        )

    def scores(predict: Callable[[Tensor], Any]) -> Scores:
        return {
            size: np.concatenate([np.asarray(predict(part).score) for part in good.split(size)]) for size in BATCHES
        }

    found = {"torch": scores(lambda part: model.predict(part, draws=config["draws"], seed=seed))}
    if "onnx" in runtimes:
        with tempfile.TemporaryDirectory() as scratch:
            exported = Exported(model.export(Path(scratch) / "out"))
        found["onnx"] = scores(lambda part: exported.predict(part.numpy()))
    return found


def check_split_scores(
    chosen: np.ndarray, counted: np.ndarray, share: float, splits: int, seed: int, rounding: float = 0.0
) -> dict[str, float | bool]:
    """Return how many good inputs are above the threshold: ``chosen`` and ``counted`` are two scorings of the same inputs.

    rounding  as calibration measures it
    holds     whether the mean over random halves is at most ``share``, up to two standard errors
    """
    rng, half, above = np.random.default_rng(seed), len(chosen) // 2, []
    for _ in range(splits):
        order = rng.permutation(len(chosen))
        calibration = chosen[order[:half]]
        limit = lift(conformal_quantile(calibration, share), calibration, rounding)
        above.append(float((counted[order[half:]] > limit).mean()))
    mean, error = float(np.mean(above)), float(np.std(above, ddof=1) / math.sqrt(splits))
    return {"bound": share, "mean": mean, "standard_error": error, "holds": mean <= share + 2 * error}


def measure_promise(seed: int = 0, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return all checks, as JSON can hold them."""
    settings = {**CONFIG, **(config or {})}
    kinds: dict[str, Any] = {}
    for name, kind in KINDS.items():
        by_runtime = score_by_batch(kind, seed, settings)
        scores = by_runtime["torch"]
        differences = {
            runtime: float(np.ptp(np.stack([*scores.values(), *own.values()]), axis=0).max())
            for runtime, own in by_runtime.items()
        }
        one = scores[BATCHES[-1]]
        rounding = {size: max(LEARNT, float(np.abs(scores[1] - each)[:PROBES].max())) for size, each in scores.items()}
        checks = [
            {
                "calibrated_in_batches_of": calibrated,
                "counted_in_batches_of": counted,
                "counted_by": runtime,
                **check_split_scores(
                    scores[calibrated], own[counted], share, settings["splits"], seed, rounding[calibrated]
                ),
            }
            for runtime, own in by_runtime.items()
            for share in SHARES
            for calibrated in BATCHES
            for counted in BATCHES
        ]
        kinds[name] = {
            "about": kind.about,
            "different_scores": len(np.unique(one.round(5))),
            "largest_difference_between_batches": differences["torch"],
            "largest_difference_with_onnx": differences["onnx"],
            "resolution": float(np.min(lift(one, one, rounding[BATCHES[-1]]) - one)),
            "checks": checks,
        }
    held = [check["holds"] for kind in kinds.values() for check in kind["checks"]]
    return {
        "experiment": "promise",
        "seed": seed,
        "config": {**settings, "batches": BATCHES, "shares": SHARES},
        "counts": {"checks": len(held), "held": sum(held)},
        "kinds": kinds,
        **provenance(),
    }


def promise_table(content: dict[str, Any]) -> str:
    """Return one line for each kind: the largest mean share over all pairs of batch sizes, of the model and as it was exported."""
    head = ["inputs", "different scores", "largest difference between batches", "with onnxruntime", "resolution"]
    head += [f"at most {100 * share:.0f} %{after}" for after in ("", ", exported") for share in SHARES]
    rows = []
    for name, kind in content["kinds"].items():
        worst = []
        for runtime in RUNTIMES:
            for share in SHARES:
                own = [each for each in kind["checks"] if (each["bound"], each["counted_by"]) == (share, runtime)]
                check = max(own, key=lambda each: each["mean"])
                worst.append(f"{100 * check['mean']:.2f} ± {100 * check['standard_error']:.2f} %")
        names = ("largest_difference_between_batches", "largest_difference_with_onnx", "resolution")
        rows.append([name, f"{kind['different_scores']:,}", *(f"{kind[each]:.1e}" for each in names), *worst])
    return markdown_table(head, rows, left=1)
