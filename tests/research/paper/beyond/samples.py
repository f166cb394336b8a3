"""Models without training, and the records that they lead to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from abnn.data.digits import Labelled
from abnn.files import write_json
from abnn.predict import Prediction
from research.paper.beyond.parts import PARTS, Inputs
from research.paper.beyond.run import FORMAT, VERSION, rounded
from research.tasks import PLANS

CLASSES = 10


class Fake:
    """A linear network with a little noise for each draw, the same for the same (seed, number of the draw); none for mean weights."""

    def __init__(self, random: bool, gain: float = 1.0, seed: int = 0) -> None:
        self.method = SimpleNamespace(random=random)
        self.gain, self.seed, self.asked, self.network = gain, seed, 0, None

    def predict(self, x: Tensor, draws: int | None, seed: int) -> Prediction:
        self.asked += len(x)
        weights = torch.randn(x[0].numel(), CLASSES, generator=torch.Generator().manual_seed(self.seed))
        logits = self.gain * (x.flatten(1) @ weights) / x[0].numel() ** 0.5
        count = (10 if draws is None else draws) if self.method.random else 1
        noise = torch.stack(
            [torch.randn(CLASSES, generator=torch.Generator().manual_seed(100 * seed + n)) for n in range(count or 1)]
        )
        noise = noise if count else torch.zeros_like(noise)
        return Prediction((logits[None] + 0.3 * noise[:, None]).softmax(-1), default="entropy")


def fake_models(seed: int = 0) -> Any:
    return {"threshold": Fake(False, 6.0, seed), "abnn": Fake(True, 2.0, seed)}


def fake_inputs(task: str = "mnist", size: int = 12) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    shape = PLANS[task].shape
    x = torch.rand(size, *shape, generator=generator)
    others = [name for name, tier, _ in PLANS[task].tests if tier != "id"]
    labels = torch.randint(CLASSES, (size,), generator=generator)
    return Inputs(Labelled(x, labels), {name: torch.rand(size, *shape, generator=generator) ** 2 for name in others})


def fake_record(folder: Path, task: str, seed: int, parts: tuple[str, ...] = tuple(PARTS), size: int = 12) -> Path:
    """A record as `Beyond` writes them."""
    models, inputs = fake_models(seed), fake_inputs(task, size)
    networks = {name: {"sha256": f"{name}{seed}", "config": {"epochs": 1}} for name in models}
    entries = {
        part: {
            "config": {"task": task, "networks": networks, **PARTS[part].settings, "inputs": size},
            "data": {"inputs": size},
            "results": rounded(PARTS[part].measure(models, inputs)),
        }
        for part in parts
    }
    path = folder / "beyond" / f"{task}-seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"format": FORMAT, "version": VERSION, "seed": seed, "parts": entries})
    return path
