"""Schedules of learning rates."""

from __future__ import annotations

import pytest

from abnn.train.optimizers import SCHEDULES


def test_schedules() -> None:
    assert [SCHEDULES["steps"](p) for p in (0.0, 0.25, 0.5, 0.99)] == pytest.approx([1, 0.1, 0.01, 0.001])
    assert SCHEDULES["cosine"](0) == 1 and SCHEDULES["cosine"](0.5) == pytest.approx(0.5)
    assert SCHEDULES["constant"](0.9) == 1
    rising = [SCHEDULES["cycle"](p) for p in (0.0, 0.1, 0.3)]
    assert rising == sorted(rising) and rising[-1] == 1 and SCHEDULES["cycle"](1.0) == pytest.approx(0)
