"""Recurrent networks: attachments at their layers, whichever of outputs and last states the network reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn


class Recurrent(nn.Module):
    """Reads the last output, the last state, or the mean over time."""

    def __init__(self, kind: type[nn.RNNBase], read: str, **options: Any) -> None:
        super().__init__()
        self.layers = kind(5, 12, batch_first=True, **options)
        width = 24 if read != "state" and self.layers.bidirectional else 12
        self.read, self.head = read, nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.layers(x)
        state = state[0] if isinstance(state, tuple) else state
        return self.head({"output": output[:, -1], "state": state[-1], "mean": output.mean(1)}[self.read])


@pytest.mark.parametrize("read", ["output", "state", "mean"])
@pytest.mark.parametrize(
    "kind,options", [(nn.LSTM, {"num_layers": 2}), (nn.GRU, {"bidirectional": True}), (nn.RNN, {})]
)
def test_attachments_at_recurrent_layers(kind: type[nn.RNNBase], options: dict[str, Any], read: str) -> None:
    torch.manual_seed(0)
    network, x = Recurrent(kind, read, **options).eval(), torch.randn(6, 7, 5)
    model = abnn.attach(network, x)
    assert model.block_names == ["layers"] and not model.folds_at_input
    with torch.no_grad():
        torch.testing.assert_close(model(x), network(x))
        for _, parameter in model.attachment_parameters():
            parameter.add_(torch.randn(parameter.shape))
        plain, attached = model.draw_logits(x)
        torch.testing.assert_close(plain, network(x))
        assert not torch.allclose(attached, plain, atol=1e-3)  # what is added reaches the prediction
        longer = torch.cat([x, x], 1)
        torch.testing.assert_close(model.draw_logits(longer)[0], network(longer))
        alone = torch.cat([copy.deepcopy(model).draw_logits(row[None]) for row in x], 1)
        torch.testing.assert_close(alone[1], attached, rtol=1e-4, atol=1e-5)


def test_time_first_is_left_alone() -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.head = nn.GRU(5, 12), nn.Linear(12, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layers(x.transpose(0, 1))[0][-1])

    assert abnn.attach(TimeFirst().eval(), torch.randn(7, 7, 5)).block_names == ["head"]
