"""Steps as CUDA graphs teach what they teach one by one."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor
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
