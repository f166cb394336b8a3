"""What counts as a difference between folded and separate draws."""

from __future__ import annotations

import pytest
import torch

import abnn
from abnn.bayes.noise import held_noise, map_noise
from abnn.model.folding import _disagreement, _one_by_one
from abnn.networks.by_name import PaperResNet


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_difference_but_a_mix_up_is(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    network = PaperResNet(width=8, blocks=2, stem="small", kaiming=False).to(dtype).eval()
    inputs = torch.rand(3, 1, 8, 8).to(dtype)
    model = abnn.attach(network, inputs[:1], draws=2)
    with torch.no_grad():
        noise = map_noise(held_noise(model.layers), lambda part: 100 * part)
        reference = _one_by_one(model, noise, inputs)
        rounding = 4 * torch.finfo(dtype).eps * torch.randn_like(reference).clamp(-1, 1) * reference.abs().max() / 10
        assert _disagreement(model, noise, inputs, reference) is None
        assert _disagreement(model, noise, inputs, reference + rounding) is None
        assert "differ" in str(_disagreement(model, noise, inputs, reference.flip(0)))  # draws
        assert "differ" in str(_disagreement(model, noise, inputs, reference.flip(1)))  # inputs
