from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits
from sklearn.svm import SVC
from torch import Tensor

from abnn.data import DigitsData, load_digits
from abnn.data.digits import handwritten_digits

TIERS = ("train", "val", "test", "semi", "full", "val_semi", "val_full")


@pytest.fixture(scope="module")
def data() -> DigitsData:
    return load_digits()


def as_keys(x: Tensor) -> list[bytes]:
    return [image.numpy().tobytes() for image in x]


def test_every_tier_has_the_form_of_the_handwritten_set(data: DigitsData) -> None:
    for name in TIERS:
        x, y = getattr(data, name)
        assert x.dtype == torch.float32 and x.shape == (len(y), 1, 8, 8) and y.dtype == torch.int64
        assert torch.equal(x * 16, (x * 16).round()) and x.min() >= 0 and x.max() <= 1
        assert (y == -1).all() if name.endswith("full") else set(y.tolist()) == set(range(10))


def test_splits_are_a_stratified_partition_of_the_source(data: DigitsData) -> None:
    source = sklearn_digits()
    parts = [data.train, data.val, data.test]
    everything = sorted((k, int(y)) for part in parts for k, y in zip(as_keys(part.x), part.y, strict=True))
    original = torch.tensor(source.images, dtype=torch.float32)[:, None] / 16
    assert everything == sorted(zip(as_keys(original), source.target.tolist(), strict=True))
    for part in parts:
        share = len(part.y) / len(source.target)
        expected = np.bincount(source.target) * share
        assert np.abs(np.bincount(part.y.numpy()) - expected).max() <= 2


def test_deterministic_and_the_seed_changes_the_split_alone(data: DigitsData) -> None:
    for name, part in handwritten_digits(0).items():
        assert torch.equal(part.x, getattr(data, name).x) and torch.equal(part.y, getattr(data, name).y)
    other = load_digits(seed=1)
    assert other.hash() != data.hash() and not torch.equal(other.test.x, data.test.x)
    for name in ("semi", "full", "val_semi", "val_full"):
        assert torch.equal(getattr(other, name).x, getattr(data, name).x)


def test_hash_sees_every_value(data: DigitsData) -> None:
    assert len(data.hash()) == len(hashlib.sha256().hexdigest())
    before = data.hash()
    for name in TIERS:
        for array in getattr(data, name):
            first = array.flatten()[0].clone()
            array.flatten()[0] = first + 1
            assert data.hash() != before
            array.flatten()[0] = first
    assert data.hash() == before


def test_printed_digits_occupy_the_box_as_handwritten_ones_do(data: DigitsData) -> None:
    def columns(x: Tensor) -> tuple[Tensor, Tensor]:
        share = x[:, 0].sum(1) / x[:, 0].sum((1, 2))[:, None]
        place = torch.arange(8.0)
        centre = (share * place).sum(1)
        return centre, (share * (place - centre[:, None]) ** 2).sum(1).sqrt()

    centre, spread = columns(data.train.x)
    for printed in (data.semi.x, data.val_semi.x):
        printed_centre, printed_spread = columns(printed)
        assert abs(float(printed_centre.mean() - centre.mean())) < 0.1
        assert float(printed_spread.mean() / spread.mean()) == pytest.approx(1.0, abs=0.1)
        # Every row of the box holds ink, as in all handwritten digits.
        assert float((printed.amax((1, 3)) > 0).float().mean()) > 0.99


def test_a_reader_of_handwriting_reads_most_printed_digits(data: DigitsData) -> None:
    reader = SVC().fit(data.train.x.flatten(1).numpy(), data.train.y.numpy())
    for printed in (data.semi, data.val_semi):
        assert reader.score(printed.x.flatten(1).numpy(), printed.y.numpy()) > 0.6
