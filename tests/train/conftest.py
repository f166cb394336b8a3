from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def short_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps for the members of the learnt score: how good it is, tests/train/test_combine.py says."""
    monkeypatch.setattr("abnn.train.combine.STEPS", 30)
