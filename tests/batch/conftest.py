"""A saved model of small pictures, pictures, and workers that run in this process."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import abnn
from abnn.batch import job
from abnn.batch.worker import Scorer, Work
from abnn.errors import InputError
from tests.conftest import generator, with_score


def png(number: int) -> bytes:
    """One of many pictures."""
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (8, 8), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with thresholds, a score and names of its classes."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        backbone = abnn.build_backbone("paper-resnet", 4, 1, width=8, blocks=2, stem="small").eval()
    x, y = torch.rand(200, 1, 8, 8, generator=generator(0)), torch.arange(200) % 4
    model = with_score(abnn.attach(backbone, x[:1]), x[:100])
    abnn.calibrate(model, [(x[100:], y[100:])], progress=False)
    return model.save(tmp_path_factory.mktemp("saved") / "model", backbone=True, extra={"class_names": list("abcd")})


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Twenty of them in two folders, and one that is none."""
    for number in range(20):
        file = tmp_path / "pictures" / str(number % 2) / f"{number:02d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number))
    (tmp_path / "pictures" / "0" / "05-damaged.png").write_bytes(b"\x89PNG")
    return tmp_path / "pictures"


class Here:
    """Workers in this process; ``most``: shards after which all is killed."""

    def __init__(self) -> None:
        self.shards: list[int] = []
        self.most: int | None = None

    def __call__(self, work: Work, shards: Sequence[int], *_: Any) -> Iterator[int]:
        scorer = Scorer(work)
        for number in shards:
            if len(self.shards) == self.most:
                raise KeyboardInterrupt
            done = scorer({"item": [number]})
            if done["error"] != [""]:
                raise InputError(done["error"][0])
            yield from done["shard"]
            self.shards.append(number)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    workers = Here()
    monkeypatch.setattr(job, "run_workers", workers)
    return workers
