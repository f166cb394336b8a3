"""What counts as a difference between folded and separate draws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.bayes.noise import Noise, held_noise, map_noise
from abnn.errors import AttachError
from abnn.model.folding import _difference, _disagreement, _one_by_one
from abnn.networks.by_name import PaperResNet


def separate_draws(dtype: torch.dtype) -> tuple[Attached, Noise, Tensor, Tensor]:
    """A model, noise of two draws, three inputs, and what single passes say about each of them."""
    torch.manual_seed(0)
    network = PaperResNet(width=8, blocks=2, stem="small", kaiming=False).to(dtype).eval()
    inputs = torch.rand(3, 1, 8, 8).to(dtype)
    model = abnn.attach(network, inputs[:1], draws=2)
    with torch.no_grad():
        noise = map_noise(held_noise(model.layers), lambda part: 100 * part)
        return model, noise, inputs, _one_by_one(model, noise, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_difference_but_a_mix_up_is(dtype: torch.dtype) -> None:
    model, noise, inputs, reference = separate_draws(dtype)
    with torch.no_grad():
        rounding = 4 * torch.finfo(dtype).eps * torch.randn_like(reference).clamp(-1, 1) * reference.abs().max() / 10
        assert _disagreement(model, noise, inputs, reference) is None
        assert _disagreement(model, noise, inputs, reference + rounding) is None
        assert "differ" in str(_disagreement(model, noise, inputs, reference.flip(0)))  # draws
        assert "differ" in str(_disagreement(model, noise, inputs, reference.flip(1)))  # inputs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_half_precision_may_be_large(dtype: torch.dtype) -> None:
    """Separate passes of a ResNet-50 in bfloat16 on CUDA differ from folded ones by 14 %."""
    model, noise, inputs, reference = separate_draws(dtype)
    with torch.no_grad():
        spread = (reference - reference.mean((0, 1))).abs().max()
        rounded = reference + 0.2 * spread * torch.rand_like(reference).round()
        assert _difference(rounded, reference) is not None
        assert _disagreement(model, noise, inputs, rounded) is None
        assert _disagreement(model, noise, inputs, rounded.flip(0)) is not None  # draws
        assert _disagreement(model, noise, inputs, reference.flip(1)) is not None  # inputs


class Mixing(nn.Module):
    """A network whose outputs for one input depend on the others by a share."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + self.share * x.sum(0))


def test_a_network_that_mixes_inputs_is_refused_in_half_precision() -> None:
    torch.manual_seed(0)
    with pytest.raises(AttachError, match="mix the inputs"):
        abnn.attach(Mixing(0.3).bfloat16().eval(), torch.randn(1, 6).bfloat16())
    abnn.attach(Mixing(0.0).bfloat16().eval(), torch.randn(1, 6).bfloat16())


class Hungry(nn.Module):
    """A network for which memory ends in one of its passes."""

    def __init__(self, last: int, error: type[Exception]) -> None:
        super().__init__()
        self.error, self.passes = error, iter([True] * last)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        if not next(self.passes, False):
            raise self.error("full")
        return self.layers(x)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_running_out_of_memory_is_said_as_it_is(error: type[Exception]) -> None:
    last = 0
    while True:
        torch.manual_seed(0)
        network = Hungry(last, error).eval()
        try:
            abnn.attach(network, torch.randn(1, 6))
            break
        except error:
            last += 1
    assert last > 10  # passes: none of them made it an error about the network
