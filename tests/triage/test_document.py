"""The code in docs/triage.md runs, block after block, as a reader would run it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.triage.calibrate import gather
from tests.train.test_fit import QUIET, attached, data, loader

DOCUMENT = Path(__file__).parents[2] / "docs" / "triage.md"


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys.modules[gather.__module__], "LEAST_OUTLIERS", 96)
    model = attached()
    abnn.fit(model, loader(), epochs=1, **QUIET)
    x, _ = data()
    held_out = DataLoader(TensorDataset(*data()), batch_size=32)
    scope: dict[str, Any] = {
        "model": model,
        "held_out_loader": held_out,
        "x": x,
        "my_outlier_dataset": torch.rand_like(x),
    }
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), flags=re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        exec(compile(block, str(DOCUMENT), "exec"), scope)  # noqa: S102
    assert set(scope["p"].verdict) <= set(abnn.triage.VERDICTS) and scope["p"].stated.shape == (len(x), 3)
    assert scope["monitor"].seen == len(x) and (tmp_path / "my-model").is_dir()
