"""The page about a user's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from abnn.cli.steps import own_report
from abnn.data import InputForm
from abnn.predict import Plain
from abnn.triage import Triage


def test_page_has_the_thresholds_of_each_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(own_report, "write_report", lambda evaluations, *_, **__: shown.extend(evaluations))
    torch.manual_seed(0)
    plain = Plain(nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), torch.zeros(1, 1, 8, 8))
    triage = Triage(0.4, 0.6, 0.05, 0.01, "entropy", 1, 0, 100, by_class=((0.0, 0.1), (0.5, 0.7)))
    loader = [(torch.rand(12, 1, 8, 8), torch.arange(12) % 2)]
    form = InputForm((1, 8, 8), torch.float32)
    own_report.write_own_report(
        tmp_path / "page.html", {"net": (plain, triage)}, loader, form, ("a", "b"), {}, "An introduction."
    )
    (evaluation,) = shown
    for each in evaluation.sets:
        expected = triage.levels(each.scores["entropy"], each.predicted)
        assert evaluation.levels(each).tolist() == expected.tolist()
    assert any((evaluation.levels(each) == 2).any() for each in evaluation.sets)
