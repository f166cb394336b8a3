"""Steps as CUDA graphs teach what they teach one by one."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.errors import AbnnWarning
from abnn.train import capture
from tests.conftest import SmallBatchNormNet

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def losses(outliers: str) -> list[float]:
    """What a fit on CUDA shows of every epoch."""
    torch.manual_seed(0)
    x, y = torch.rand(128, 1, 16, 16), torch.arange(128) % 3
    model = abnn.attach(SmallBatchNormNet().eval().cuda(), x[:1].cuda())
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        warnings.filterwarnings("ignore", "backbone: got a network at chance", AbnnWarning)
        rows = abnn.fit(model, DataLoader(TensorDataset(x, y), 8), outliers, epochs=3, progress=False).rows
    return [row[name] for row in rows for name in ("id", "outliers", "accuracy")]


@needs_cuda
@pytest.mark.parametrize("outliers", ["preset", "noise"])  # made by the host in part, and on the device alone
def test_graphs_teach_the_same(monkeypatch: pytest.MonkeyPatch, outliers: str) -> None:
    captures: list[bool] = []
    original = capture.CapturedStep._capture

    def counting(step: capture.CapturedStep, inputs: list[Tensor]) -> None:
        original(step, inputs)
        captures.append(step.graph is not None)

    monkeypatch.setattr(capture.CapturedStep, "_capture", counting)
    by_graph = losses(outliers)
    assert captures == [True]
    monkeypatch.setattr(capture, "WARM_UP", 10**6)
    assert by_graph == pytest.approx(losses(outliers), rel=2e-2)


class Looking(nn.Module):
    """Looks at a value in the middle of its pass, which no graph can do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).relu()
        return self.head(self.two(h if h.sum().item() < 1e9 else -h).relu())


@needs_cuda
def test_a_fit_goes_on_where_a_step_cannot_be_captured() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(128, 6), torch.arange(128) % 3
    model = abnn.attach(Looking().eval().cuda(), x[:1].cuda())
    with pytest.warns(AbnnWarning, match="training step cannot be captured as one CUDA graph"):
        history = abnn.fit(model, DataLoader(TensorDataset(x, y), 8), epochs=2, progress=False)
    assert len(history.rows) == 2 and torch.cuda.current_stream() == torch.cuda.default_stream()
