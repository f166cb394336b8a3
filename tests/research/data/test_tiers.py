"""The stored tiers are what the code makes, and pictures for choosing settings are what they are said to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_sample_images

from abnn.data import InputForm, load_digits
from abnn.data.digits import STORED
from abnn.data.drawing import block_counts, in_box
from research.data import open_source
from research.data.tiers import CROP_SIDES as SIDES
from research.data.tiers import (
    TEST_FACES,
    VALIDATION_FACES,
    glyph_bitmap,
    make_tiers,
    photo_patches,
    photograph_crops,
    present,
    printed_bitmaps,
    printed_digits,
    write_tiers,
)


@pytest.mark.skipif(not present(("cmti10",)), reason="needs a font of matplotlib 3.11")
def test_the_stored_tiers_are_those_that_the_code_makes(tmp_path: Path) -> None:
    data = load_digits()
    for name, (x, y) in make_tiers().items():
        assert torch.equal(getattr(data, name).x, x) and torch.equal(getattr(data, name).y, y)
    write_tiers(tmp_path / "digits.npz")
    with np.load(tmp_path / "digits.npz") as again, np.load(STORED) as stored:
        assert list(again) == list(stored)
        assert all(again[name].dtype == stored[name].dtype and (again[name] == stored[name]).all() for name in stored)


def test_crops_are_area_means_of_the_photographs() -> None:
    crops = photograph_crops(80, seed=3)
    assert crops.shape == (80, 32, 32, 3) and crops.dtype == np.uint8
    np.testing.assert_array_equal(crops, photograph_crops(80, seed=3))
    assert (crops != photograph_crops(80, seed=4)).any()
    photos = load_sample_images().images
    for place, side in ((0, SIDES[0]), (79, SIDES[-1])):  # ten of each photograph and side, in this order
        block, photo = side // 32, photos[place // 40].astype(np.int64)
        padded = np.pad(photo, ((1, 0), (1, 0), (0, 0))).cumsum(0).cumsum(1)
        sums = padded[block:, block:] - padded[:-block, block:] - padded[block:, :-block] + padded[:-block, :-block]
        means = np.round(sums / block**2)
        # Where the crop's first column of pixels fits, the whole crop does at exactly one place or more.
        fits = [
            (row, column)
            for row, column in np.argwhere((means == crops[place, 0, 0]).all(-1))
            if row + side <= photo.shape[0] and column + side <= photo.shape[1]
            if (means[row : row + side : block, column : column + side : block] == crops[place]).all()
        ]
        assert fits


def test_most_crops_show_something() -> None:
    pictures = open_source("photographs/val").read(0, 4000, InputForm((3, 32, 32))).x
    assert pictures.shape == (4000, 3, 32, 32)
    assert (pictures.flatten(2).std(2).amax(1) >= 0.05).float().mean() >= 0.75


def test_printed_digits_are_those_of_the_embedded_set_at_full_size() -> None:
    source = open_source("printed-digits/val")
    x = source.read(0, len(source), InputForm((1, 28, 28))).x
    assert len(source) == (2060 if present(("cmti10",)) else 1960) and set(source.labels.tolist()) == set(range(10))
    assert x[:, :, 0].mean() < 0.5 and x.flatten(1).amax(1).min() == 1  # bright on dark
    bitmaps, labels = printed_bitmaps(VALIDATION_FACES, 2, seed=1)
    small = printed_digits(VALIDATION_FACES, 2, seed=1)
    assert (block_counts(bitmaps) == small.x).all() and (labels == small.y).all()


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


def test_photo_patches_are_area_means_and_seldom_constant() -> None:
    patches = photo_patches(1000, seed=2)
    assert len(patches) == 1000 and float((patches.flatten(1).std(dim=1) < 0.05).float().mean()) < 0.25
    grey = [photo @ np.array([0.299, 0.587, 0.114]) / 255 for photo in load_sample_images().images]
    # The first patches are windows of 8x8 of the first photograph, up to rounding to 17 levels.
    windows = np.lib.stride_tricks.sliding_window_view(grey[0], (8, 8)).reshape(-1, 64)
    for patch in patches[:3].reshape(3, 64).numpy():
        assert np.abs(windows - patch).max(axis=1).min() <= 1 / 32 + 1e-5
    # The last ones are windows of 128x128 of the second, each value the mean of 16x16.
    padded = np.pad(grey[1], ((1, 0), (1, 0))).cumsum(0).cumsum(1)
    means = (padded[16:, 16:] - padded[:-16, 16:] - padded[16:, :-16] + padded[:-16, :-16]) / 256
    windows = np.lib.stride_tricks.sliding_window_view(means, (113, 113))[..., ::16, ::16].reshape(-1, 64)
    for patch in patches[-3:].reshape(3, 64).numpy():
        assert np.abs(windows - patch).max(axis=1).min() <= 1 / 32 + 1e-5
