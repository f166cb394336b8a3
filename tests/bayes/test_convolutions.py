"""Three ways to convolve with all draws, against torch's convolution draw by draw."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from abnn.bayes.convolutions import WAYS, Geometry, channels_last
from tests.conftest import generator


def last(x: Tensor) -> Tensor:
    """The same numbers with the channels last in memory."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


@settings(max_examples=60, deadline=None)
@given(
    rank=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 2),
    kernel=st.sampled_from([1, 3]),
    draws=st.integers(2, 4),
    batch=st.integers(1, 3),
    bias=st.booleans(),
    folded=st.booleans(),
    channels=st.booleans(),
)
def test_all_ways_and_their_gradients_are_torchs(
    rank: int,
    groups: int,
    stride: int,
    kernel: int,
    draws: int,
    batch: int,
    bias: bool,
    folded: bool,
    channels: bool,
) -> None:
    random = generator(draws)
    geometry = Geometry((stride,) * rank, (kernel // 2,) * rank, groups)
    x = torch.randn(draws * batch if folded else batch, 4, *(5, 6, 7)[:rank], dtype=torch.float64, generator=random)
    weight = torch.randn(draws, 6, 4 // groups, *(kernel,) * rank, dtype=torch.float64, generator=random)
    shift = torch.randn(draws, 6, dtype=torch.float64, generator=random) if bias else None
    x = last(x) if channels else x
    rows = x.chunk(draws) if folded else [x] * draws
    expected = torch.cat(
        [geometry.convolve(rows[s], weight[s], None if shift is None else shift[s]) for s in range(draws)]
    )
    slope = torch.randn(expected.shape, dtype=torch.float64, generator=random)
    inputs = [each.clone().requires_grad_() for each in (x, weight, shift) if each is not None]
    gradients = {}
    for name, way in WAYS.items():
        y = way(inputs[0], inputs[1], inputs[2] if bias else None, geometry, folded)
        torch.testing.assert_close(y, expected)
        gradients[name] = torch.autograd.grad(y, inputs, slope)
        if rank == 2:  # of the others, torch's convolutions do not always keep the format
            assert y.is_contiguous() != channels and channels_last(y) == channels
    for name in WAYS:
        for found, wanted in zip(gradients[name], gradients["loop"]):
            torch.testing.assert_close(found, wanted)


def test_channels_last_is_about_memory() -> None:
    x = torch.zeros(2, 3, 4, 5)
    assert not channels_last(x) and channels_last(last(x))
    assert channels_last(x.to(memory_format=torch.channels_last))
    assert not channels_last(torch.zeros(2, 1, 4, 5).to(memory_format=torch.channels_last))  # one channel: both at once
    assert not channels_last(x.transpose(2, 3))
