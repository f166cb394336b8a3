from __future__ import annotations

import pytest
import torch

from abnn import attach
from abnn.model.attachments import Norm
from abnn.networks.by_name import PaperResNet


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_a_norm_learns_from_channels_last_inputs(needs_gradient: bool) -> None:
    norm = Norm(4, 8)
    x = torch.randn(3, 8, 5, 5, generator=torch.Generator().manual_seed(0))
    found = []
    for given in (x, x.to(memory_format=torch.channels_last)):
        norm.zero_grad()
        norm(given.detach().requires_grad_(needs_gradient)).square().sum().backward()
        assert norm.weight.grad is not None
        found.append(norm.weight.grad.clone())
    torch.testing.assert_close(found[0], found[1])


def test_attachments_of_a_frozen_channels_last_network_learn() -> None:
    network = PaperResNet(width=8, blocks=2, stem="small").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model = attach(network, torch.zeros(1, 1, 8, 8), preset="authors")
    for _, parameter in model.backbone_parameters():
        parameter.requires_grad_(False)
    model.draw_logits(torch.rand(4, 1, 8, 8)).sum().backward()
    assert all(parameter.grad is not None for _, parameter in model.attachment_parameters())
