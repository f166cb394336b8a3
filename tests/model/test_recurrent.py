"""Recurrent networks: attachments at their layers, whichever of outputs and last states the network reads."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.errors import InputError


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


class Swapped(nn.Module):
    """A network that takes time last."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x.mT)


def test_series_of_other_lengths_are_read_where_time_is_last_and_else_refused() -> None:
    """The score reads channels, which are the second dimension. Shorter series had scores of zeros that filled them up."""
    torch.manual_seed(0)
    x, y = torch.randn(120, 7, 5), torch.arange(120) % 3
    model = abnn.attach(Recurrent(nn.GRU, "state").eval(), x[:1])
    message = r"x: got shape \(\d+, {}, 5\); accepted: 7 in the second dimension, as in the example.*\[batch, features, time\]"
    with pytest.raises(InputError, match=message.format(6) + r".*batch 1 of the loader"):
        abnn.fit(model, [(x[:60], y[:60]), (x[60:, :6], y[60:])], progress=False)
    assert model.predict(x[:60, :6]).score.isfinite().all()  # nothing is learnt yet
    abnn.fit(model, [(x[:60], y[:60]), (x[60:], y[60:])], epochs=0, progress=False)
    for other in (x[:60, :6], torch.cat([x, x], 1)[:60, :8]):
        with pytest.raises(InputError, match=message.format(other.shape[1])):
            model.predict(other)
    swapped = abnn.attach(Swapped(Recurrent(nn.GRU, "state").eval()), x[:1].mT)
    abnn.fit(swapped, [(x[:60].mT, y[:60]), (x[60:, :6].mT, y[60:])], epochs=0, progress=False)
    alone = torch.cat([swapped.predict(row[None]).score for row in x[:4, :6].mT])
    torch.testing.assert_close(swapped.predict(x[:4, :6].mT).score, alone, rtol=1e-4, atol=1e-4)
