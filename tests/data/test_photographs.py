from __future__ import annotations

import numpy as np
from sklearn.datasets import load_sample_images

from abnn.data import InputForm, open_source
from abnn.data.digits import VALIDATION_FACES, block_counts, present, printed_bitmaps, printed_digits
from abnn.data.photographs import SIDES, photograph_crops


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
