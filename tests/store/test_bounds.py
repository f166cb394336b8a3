"""What a folder may ask for at load time: draws that fit into memory, and classes that its weights know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import abnn
from abnn.errors import FileFormatError
from abnn.networks import recipe
from abnn.store import model as store
from tests.conftest import alter
from tests.train.test_fit import backbone, data

X = data()[0]
SMALL: dict[str, Any] = {"name": "paper-resnet", "in_channels": 1, "width": 4, "blocks": 1, "stem": "small"}


def test_draws_whose_noise_takes_too_much_memory_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of them is made: the held draws of the refused model would be the first to take that memory."""
    network = backbone()
    model = abnn.attach(network, X[:1], draws=2)
    path = alter(model.save(tmp_path / "model"), draws=5)
    monkeypatch.setattr(store, "MOST_NOISE", 5 * model.noise_bytes)
    assert abnn.load(path, network).draws == 5
    monkeypatch.setattr(store, "MOST_NOISE", 5 * model.noise_bytes - 1)
    resampled: list[int] = []
    monkeypatch.setattr(abnn.Attached, "resample", lambda self, draws, seed: resampled.append(draws))
    with pytest.raises(FileFormatError, match=r"draws is 5; accepted: so many that their noise takes at most .* MiB"):
        abnn.load(path, network)
    assert 5 not in resampled


def test_more_draws_than_any_model_needs_are_refused_unread(tmp_path: Path) -> None:
    model = abnn.attach(backbone(), X[:1])
    with pytest.raises(FileFormatError, match="draws is 10001; accepted: less than or equal to 10000"):
        abnn.load(alter(model.save(tmp_path / "model"), draws=10_001), model.backbone)


@pytest.mark.parametrize(("classes", "rows", "fits"), [(50, 50, True), (51, 51, True), (51, 50, False), (50, 3, True)])
def test_many_classes_of_a_network_of_unknown_size_must_be_in_the_weights(
    classes: int, rows: int, fits: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some networks cannot be built without memory, so that their size is not known beforehand; a file shows what it holds."""
    monkeypatch.setattr(recipe, "FEW", 50)
    monkeypatch.setattr(recipe, "_numbers", lambda _: None)
    weights = {"head.weight": torch.zeros(rows, 4), "scale": torch.zeros(())}
    asked = {**SMALL, "classes": classes}
    if fits:
        assert recipe.rebuild(tmp_path, asked, weights)(torch.zeros(1, 1, 8, 8)).shape == (1, classes)
        return
    with pytest.raises(FileFormatError, match="no weight of its file is of 51 classes, as its backbone"):
        recipe.rebuild(tmp_path, asked, weights)


def test_a_million_classes_are_more_than_the_weights_hold(tmp_path: Path) -> None:
    """Where the size is known it counts, without making the network."""
    with pytest.raises(FileFormatError, match="numbers, far more than its weights file"):
        recipe.rebuild(tmp_path, {**SMALL, "classes": 2**20, "width": 64}, {"head.weight": torch.zeros(3, 4)})
