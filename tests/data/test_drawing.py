"""Drawings come out in the form of the training data, whatever the paper."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import ndimage

from abnn.data.drawing import (
    BOX,
    THINNEST,
    InkForm,
    NoInkError,
    block_counts,
    cut_out,
    in_box,
    otsu_threshold,
    read_drawing,
    reads_drawings,
    size_in_box,
    thickened,
    without_specks,
)
from abnn.errors import InputError
from research.data.tiers import glyph_bitmap


def paper(ink: np.ndarray, paper: int = 255, pen: int = 0) -> np.ndarray:
    return np.where(ink, pen, paper).astype(np.uint8)


def glyph(character: str, side: int = 280) -> np.ndarray:
    """A printed character somewhere on a sheet."""
    ink = glyph_bitmap("DejaVuSans", character).numpy() > 0.5
    sheet = np.zeros((side, side), bool)
    sheet[30 : 30 + ink.shape[0], 50 : 50 + ink.shape[1]] = ink
    return sheet


@pytest.mark.parametrize("digit", "0123456789")
def test_a_printed_digit_becomes_what_the_data_set_makes_of_it(digit: str) -> None:
    ink = (glyph_bitmap("DejaVuSans", digit) > 0.5).float()
    height, width = size_in_box(*ink.shape)
    expected = block_counts(in_box(ink, height, width, 0)[None])[0]
    made = read_drawing(paper(glyph(digit)))
    assert torch.equal(made, expected)
    assert made.shape == (1, 8, 8) and torch.equal(made * 16, (made * 16).round())


def test_place_paper_and_polarity_do_not_matter() -> None:
    sheet = glyph("4")
    reference = read_drawing(paper(sheet))
    assert torch.equal(read_drawing(paper(np.roll(sheet, (20, 40), (0, 1)))), reference)
    assert torch.equal(read_drawing(paper(sheet, paper=0, pen=255)), reference)
    assert torch.equal(read_drawing(paper(sheet, paper=190, pen=70)), reference)
    specks = sheet.copy()
    specks[5:7, 5:7] = specks[-9:-7, 3:5] = True
    assert torch.equal(read_drawing(paper(specks)), reference)


def test_large_drawings_are_reduced_first() -> None:
    sheet = glyph("2")
    large = read_drawing(paper(np.kron(sheet, np.ones((6, 6), bool))))
    assert (large - read_drawing(paper(sheet))).abs().mean() < 0.05


@pytest.mark.parametrize("sheet", [np.full((50, 50), 255, np.uint8), np.full((50, 50), 128, np.uint8)])
def test_empty_paper_is_refused(sheet: np.ndarray) -> None:
    with pytest.raises(NoInkError, match="empty"):
        read_drawing(sheet)


@settings(max_examples=100, deadline=None)
@given(arrays(np.uint8, st.tuples(st.integers(1, 40), st.integers(1, 40))))
def test_any_picture_gives_an_input_or_no_ink(grey: np.ndarray) -> None:
    with contextlib.suppress(NoInkError):
        made = read_drawing(grey)
        assert made.shape == (1, 8, 8) and 0 <= made.min() and made.max() <= 1


@settings(max_examples=100, deadline=None)
@given(arrays(np.uint8, (6, 7)))
def test_otsu_separates_best(grey: np.ndarray) -> None:
    """Against the definition, over all thresholds."""

    def between(threshold: int) -> float:
        low, high = grey[grey <= threshold].astype(float), grey[grey > threshold].astype(float)
        return len(low) * len(high) * (low.mean() - high.mean()) ** 2 if len(low) and len(high) else 0.0

    best = max(between(threshold) for threshold in range(255))
    assert between(otsu_threshold(grey)) == pytest.approx(best, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 3000))
def test_ink_fills_the_box_and_never_leaves_it(height: int, width: int) -> None:
    tall, wide = size_in_box(height, width)
    assert 1 <= tall <= BOX and 1 <= wide <= BOX and max(tall, wide) == BOX


@pytest.mark.parametrize("width", [1, 2, 5, 10, 23])
def test_thin_strokes_are_grown_to_one_width(width: int) -> None:
    stroke = np.ones((170, width), bool)
    grown = thickened(stroke)
    wanted = THINNEST * 170
    assert 2 * ndimage.distance_transform_edt(grown).max() == pytest.approx(wanted, abs=2)
    centre = [(side - part) // 2 for side, part in zip(grown.shape, stroke.shape)]
    assert grown[centre[0] : centre[0] + 170, centre[1] : centre[1] + width].all()  # nothing is lost
    assert np.array_equal(grown, grown[::-1, ::-1])  # grown evenly


def test_thick_strokes_are_left_alone() -> None:
    for digit in "0123456789":
        ink = cut_out(glyph(digit))
        assert np.array_equal(cut_out(thickened(ink)), ink)


def test_a_single_part_is_kept_whole() -> None:
    ink = np.eye(6, dtype=bool)
    assert np.array_equal(without_specks(ink), ink)


def test_only_the_form_of_the_embedded_digits_reads_drawings() -> None:
    digits = {"class_names": [str(digit) for digit in range(10)]}
    assert reads_drawings(SimpleNamespace(input_shape=(1, 8, 8), extra=digits))
    assert not reads_drawings(SimpleNamespace(input_shape=(1, 28, 28), extra=digits))
    assert not reads_drawings(SimpleNamespace(input_shape=(1, 8, 8), extra={}))


def test_the_form_reads_every_picture_as_ink() -> None:
    digits = {"class_names": [str(digit) for digit in range(10)]}
    model = SimpleNamespace(input_shape=(1, 8, 8), input_dtype=torch.float64, extra=digits)
    sheets = np.stack([paper(glyph("3")), paper(glyph("8"), paper=30, pen=220)])
    x = InkForm.of(model).images(sheets)
    assert x.dtype == torch.float64 and torch.equal(x.float(), torch.stack([read_drawing(sheet) for sheet in sheets]))
    assert torch.equal(InkForm.of(model).images(np.repeat(sheets[..., None], 3, -1)), x)
    model.input_shape = (1, 28, 28)
    with pytest.raises(InputError, match="embedded digits"):
        InkForm.of(model)
