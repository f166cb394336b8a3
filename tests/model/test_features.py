"""What is noted of blocks."""

from __future__ import annotations

import pytest
import torch

from abnn.model.features import OF_A_PLACE, _by_sums, condense, condensed_width, note, sketch, statistics
from tests.conftest import generator


def test_sketch_is_a_fixed_projection() -> None:
    features = torch.arange(10.0).reshape(2, 5)
    torch.testing.assert_close(sketch(features, 2), torch.tensor([[-1.0, -1.0, 4.0], [-1.0, -1.0, 9.0]]))
    assert sketch(features, 1) is features
    other = torch.randn(2, 5, generator=generator(1))
    torch.testing.assert_close(sketch(2 * features - other, 3), 2 * sketch(features, 3) - sketch(other, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["channels", "channels last", "tokens"])
def test_notes_are_mean_and_standard_deviation(layout: str, dtype: torch.dtype) -> None:
    x = (2 + torch.randn(3, 5, 7, 11, generator=generator(0))).to(dtype)
    if layout == "channels last":
        x = x.to(memory_format=torch.channels_last)
    exact = x.double().movedim(-1, 1) if layout == "tokens" else x.double()
    expected = torch.cat([exact.mean((2, 3)), exact.std((2, 3), correction=0)], dim=1)
    found = note(x, layout.split()[0])
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spread", [0.0, 1e-3, 1.0])
def test_sums_lose_less_than_bfloat16_does(spread: float) -> None:
    x = (100 * (1 + spread * torch.randn(4, 8, 3136, generator=generator(1)))).bfloat16()
    mean, std = _by_sums(x)
    exact = x.double()
    assert torch.allclose(mean.double(), exact.mean(2), rtol=1e-6)
    assert (std - exact.std(2, correction=0)).abs().max() < 2**-10 * exact.mean(2).abs().max()


@pytest.mark.parametrize("width", [1, 5, 256, 257, 1000, 4097])
def test_wide_places_are_condensed(width: int) -> None:
    features = torch.randn(3, width, generator=generator(width))
    found = condense(features)
    assert found.shape == (3, condensed_width((1, width), "flat")) and found.shape[1] <= OF_A_PLACE
    if width <= OF_A_PLACE:
        assert found is features
    other = torch.randn(3, width, generator=generator(1))
    torch.testing.assert_close(condense(features + 2 * other), found + 2 * condense(other), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("shape", "layout", "numbers"),
    [((1, 7), "flat", 7), ((1, 4, 9), "channels", 8), ((1, 4, 5, 6), "channels", 8), ((1, 9, 4), "tokens", 8),
     ((1, 3, 3, 4), "tokens", 8), ((1, 6), "pooled tokens", 6), ((1, 2, 3, 4, 5), "channels", 4)],
)  # fmt: skip
def test_how_many_numbers_are_noted(shape: tuple[int, ...], layout: str, numbers: int) -> None:
    assert note(torch.rand(shape), layout).shape == (1, numbers) and statistics(shape, layout) == numbers
