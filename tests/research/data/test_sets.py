"""Sets that are classes of others, and the fixed cut of training data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from abnn.errors import InputError
from research.data import open_source
from research.data.cut import is_held_out
from tests.data.test_parts import everything, original, write_cifar


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar(tmp_path_factory.mktemp("data"))


def test_named_sets_are_classes_of_others(root: Path) -> None:
    for name, whole, classes in (
        ("cat-dog/train", "cifar10/train", "cat,dog"),
        ("cat-dog/test", "cifar10/test", "cat,dog"),
        ("tiger-wolf/test", "cifar100/test", "tiger,wolf"),
        ("unrelated/test", "cifar10/test", "airplane,automobile,ship,truck"),
    ):
        source, same = open_source(name, root), open_source(f"{whole}[{classes}]", root)
        assert source.name == name and same.name == f"{whole}[{classes}]"
        assert source.class_names == same.class_names == tuple(classes.split(","))
        assert source.labels.tolist() == same.labels.tolist() and source.fingerprint == same.fingerprint
        assert torch.equal(everything(source), everything(same))
    labels = original(root, "cifar100/test")[1]
    assert open_source("tiger-wolf/test", root).labels.tolist() == [int(n == 3) for n in labels if n in (1, 3)]
    assert open_source("cifar100/test[Aquarium fish]", root).class_names == ("aquarium_fish",)


@pytest.mark.parametrize("whole", ["cifar10/train", "cat-dog/train"])
def test_fit_and_val_are_a_fixed_partition(root: Path, whole: str) -> None:
    train = open_source(whole, root)
    fit, val = (open_source(whole.replace("train", part), root) for part in ("fit", "val"))
    held = is_held_out(len(train))
    x = everything(train)
    assert torch.equal(everything(val, size=64), x[held]) and torch.equal(everything(fit), x[~held])
    assert val.labels.tolist() == train.labels[held].tolist() and len(val) + len(fit) == len(train)
    assert val.class_names == train.class_names and val.name == whole.replace("train", "val")
    assert len({train.fingerprint, fit.fingerprint, val.fingerprint}) == 3


def test_the_cut_never_changes() -> None:
    """MNIST's, SVHN's and Cat-Dog's held-out inputs, for ever."""
    for count, number in ((60_000, 6000), (73_257, 7300), (10_000, 1000)):
        places = [place for first in range(900, count, 1000) for place in range(first, min(first + 100, count))]
        assert np.flatnonzero(is_held_out(count)).tolist() == places and len(places) == number


def test_too_little_to_cut(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for count in (900, 901):
        np.savez(
            tmp_path / "mnist" / "train.npz", images=np.full((count, 2, 2), 9, np.uint8), labels=np.zeros(count, int)
        )
        if count == 900:
            with pytest.raises(InputError, match="source 'mnist/train': got 900 inputs; accepted: more than 900"):
                open_source("mnist/val", tmp_path)
    assert len(open_source("mnist/val", tmp_path)) == 1 and len(open_source("mnist/fit", tmp_path)) == 900


def test_sets_that_are_not_there(root: Path) -> None:
    for text, message in (
        ("cat-dog/best", "accepted: cat-dog/fit, cat-dog/test, cat-dog/train, cat-dog/val"),
        ("cat-dgo/test", "Did you mean 'cat-dog/test'"),
        ("cat-dog/test/0", "accepted: cat-dog/fit"),
        ("notmnist/val", "accepted: notmnist/test"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(text, root)
