from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from research.paper.rows import alphas, authors, ours, posthoc, threshold
from tests.research.paper.samples import fake_record

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of four methods on two tasks, and more of some on one: everything else was not run."""
    folder = tmp_path_factory.mktemp("results")
    for task in ("mnist", "svhn"):
        apart = {threshold(task).name: 0.4, authors(task).name: 0.7, ours(task).name: 1.0, posthoc(task)[0].name: 1.3}
        for cell in (threshold(task), authors(task), ours(task), posthoc(task)[0]):
            for seed in (0, 1):
                fake_record(folder, cell, seed, apart[cell.name])
    fake_record(folder, posthoc("mnist")[1], 0, 0.2)
    fake_record(folder, alphas("mnist")[0], 0, 1.5)
    return folder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """A folder with the project's own page."""
    (tmp_path / "docs").mkdir()
    shutil.copy(DOCS / "reproduction.md", tmp_path / "docs")
    return tmp_path / "docs"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small made-up files in the place of the real ones."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    shapes = {"mnist/train": (28, 28), "mnist/test": (28, 28), "semeion/test": (16, 16)}
    for name, shape in {**shapes, "svhn/test": (32, 32, 3), "cifar10/test": (32, 32, 3)}.items():
        count = 130 if name == "mnist/train" else 12
        images = rng.integers(0, 256, (count, *shape), np.uint8)
        (folder / name).parent.mkdir(exist_ok=True)
        np.savez(folder / f"{name}.npz", images=images, labels=np.arange(count) % 10)
    return folder
