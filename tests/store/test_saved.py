"""Saved models by their folder, on backbones from the user's own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import abnn
from abnn.errors import FileFormatError, InputError
from abnn.networks.by_name import PaperResNet
from abnn.store.names import class_names_of
from abnn.store.saved import load_model
from abnn.tensors import write_tensors
from tests.conftest import alter
from tests.train.test_fit import backbone, data

X = data()[0]
OWN = f"{__name__}:fresh"


def fresh() -> PaperResNet:
    """The form of the backbone, with other weights."""
    return backbone(trained=False)


@pytest.fixture(scope="module")
def model() -> abnn.Attached:
    return abnn.attach(backbone(), X[:1])


def test_a_network_by_function_gets_the_saved_weights(model: abnn.Attached, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model", backbone=True)
    assert torch.equal(load_model(path, OWN).predict(X).samples, model.predict(X).samples)
    model.save(path)
    with pytest.raises(FileFormatError, match="other weights or layers"):
        load_model(path, OWN)


def test_weights_that_were_named_are_not_replaced(model: abnn.Attached, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model", backbone=True)
    write_tensors(tmp_path / "other.safetensors", fresh().state_dict())
    with pytest.raises(FileFormatError, match="other weights or layers"):
        load_model(path, OWN, tmp_path / "other.safetensors")
    assert load_model(path, OWN, path / "backbone.safetensors").classes == 3


def test_own_code_is_named_and_never_run_unasked(model: abnn.Attached, tmp_path: Path) -> None:
    path = model.save(tmp_path / "model", backbone=True, extra={"backbone": OWN})
    for weights in (None, path / "backbone.safetensors"):
        with pytest.raises(InputError, match=f"backbone: got None.*Pass --backbone {OWN} if you trust"):
            load_model(path, weights=weights)
    recipe = {"width": 8, "blocks": 2, "stem": "small", "kaiming": False}
    alter(path, backbone={"name": "paper-resnet", "classes": 3, "in_channels": 1, **recipe})
    assert load_model(path).classes == 3  # there is a recipe, so that no code is needed


def test_class_names_are_checked_where_they_can_be_mended(model: abnn.Attached, tmp_path: Path) -> None:
    for names, given in (
        (["cat"], "got 1 names; accepted: 3"),
        ([0, 1, 2], "got .0, 1, 2.; accepted: a list of 3 strings"),
        ("cat", "got 'cat'"),
    ):
        with pytest.raises(InputError, match=rf'extra\["class_names"\]: {given}'):
            model.save(tmp_path / "model", extra={"class_names": names})
        assert not (tmp_path / "model").exists()
    assert class_names_of(model) is None
    path = model.save(tmp_path / "model", backbone=True, extra={"class_names": ("a", "b", "c")})
    assert class_names_of(load_model(path, OWN)) == class_names_of(model) == ["a", "b", "c"]
    wrong = load_model(path, OWN)
    wrong.extra["class_names"] = ["a"]
    with pytest.raises(InputError, match="class_names of the model: got 1 names.*Save the model again"):
        class_names_of(wrong)


def test_a_folder_cannot_ask_for_a_large_network_by_name(model: abnn.Attached, tmp_path: Path) -> None:
    """The number of classes is checked before the network that the user names is built for it."""
    path = alter(model.save(tmp_path / "model"), classes=10**12)
    with pytest.raises(FileFormatError, match="classes is 1000000000000; accepted: "):
        load_model(path, "paper-resnet")
