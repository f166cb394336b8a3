from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits as sklearn_digits
from sklearn.datasets import load_sample_images
from sklearn.svm import SVC
from torch import Tensor

from abnn.data import DigitsData, load_digits
from abnn.data.digits import (
    TEST_FACES,
    VALIDATION_FACES,
    block_counts,
    glyph_bitmap,
    handwritten_digits,
    in_box,
    photo_patches,
    present,
    printed_digits,
)

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


def test_faces_of_test_and_validation_differ_and_have_ten_different_digits() -> None:
    assert not set(TEST_FACES) & set(VALIDATION_FACES)
    for face in present(TEST_FACES + VALIDATION_FACES):
        shapes = {in_box(glyph_bitmap(face, str(d)), 32, 20, 0).numpy().tobytes() for d in range(10)}
        assert len(shapes) == 10, face


def test_a_face_that_an_older_matplotlib_lacks_is_left_out() -> None:
    assert set(TEST_FACES + VALIDATION_FACES) - set(present(TEST_FACES + VALIDATION_FACES)) <= {"cmti10"}
    with_it, without = (printed_digits(("DejaVuSans", *more), copies=1, seed=0) for more in (("absent",), ()))
    assert torch.equal(with_it.x, without.x) and torch.equal(with_it.y, without.y)


def test_glyph_fills_its_rectangle_in_the_box() -> None:
    box = in_box(glyph_bitmap("DejaVuSans", "0"), 30, 21, shift=1)
    rows, columns = box.any(dim=1).nonzero().flatten(), box.any(dim=0).nonzero().flatten()
    assert set(box.unique().tolist()) == {0.0, 1.0}
    assert (int(rows[0]), int(rows[-1])) == (1, 30)
    assert (int(columns[0]), int(columns[-1])) == (6, 26)
    counts = box.numpy().reshape(8, 4, 8, 4).sum((1, 3)) / 16
    assert np.array_equal(block_counts(box[None])[0, 0].numpy(), counts)


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


def test_photo_patches_are_area_means_and_seldom_constant(data: DigitsData) -> None:
    assert len(data.full.x) == 1000
    assert float((data.full.x.flatten(1).std(dim=1) < 0.05).float().mean()) < 0.25
    grey = [photo @ np.array([0.299, 0.587, 0.114]) / 255 for photo in load_sample_images().images]
    # The first patches are windows of 8x8 of the first photograph, up to rounding to 17 levels.
    windows = np.lib.stride_tricks.sliding_window_view(grey[0], (8, 8)).reshape(-1, 64)
    patches = photo_patches(1000, seed=2)
    for patch in patches[:3].reshape(3, 64).numpy():
        assert np.abs(windows - patch).max(axis=1).min() <= 1 / 32 + 1e-5
    # The last ones are windows of 128x128 of the second, each value the mean of 16x16.
    padded = np.pad(grey[1], ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    means = (padded[16:, 16:] - padded[:-16, 16:] - padded[16:, :-16] + padded[:-16, :-16]) / 256
    windows = np.lib.stride_tricks.sliding_window_view(means, (113, 113))[..., ::16, ::16].reshape(-1, 64)
    for patch in patches[-3:].reshape(3, 64).numpy():
        assert np.abs(windows - patch).max(axis=1).min() <= 1 / 32 + 1e-5
