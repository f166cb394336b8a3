"""What is noted of blocks."""

from __future__ import annotations

import pytest
import torch

from abnn.model.features import _by_sums, largest_value, note, sketch
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


def test_numbers_of_words_have_no_scale() -> None:
    assert torch.equal(largest_value(torch.tensor([[3, 9]])), torch.zeros(1, 1, dtype=torch.long))
    assert torch.equal(largest_value(torch.tensor([[3.0, -9.0]])), torch.tensor([[9.0]]))
