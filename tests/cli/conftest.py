"""What tests of several commands share."""

from __future__ import annotations

import pytest

from abnn.evaluate.report import page


def draw_fewer(patch: pytest.MonkeyPatch) -> None:
    """One figure in each section of a page: rendering them takes most of the time."""
    draw = page._drawings
    patch.setattr(page, "_drawings", lambda models: {name: each[:1] for name, each in draw(models).items()})


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_fewer(monkeypatch)
