"""What tests of the page share."""

from __future__ import annotations

import pytest

from abnn.evaluate.report import page


@pytest.fixture
def one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first figure of the page alone, for tests of other things: rendering them takes most of the time."""
    draw = page._drawings

    def draw_first(models):  # type: ignore[no-untyped-def]
        drawings = draw(models)
        return {name: each[:1] if name == "ordered" else [] for name, each in drawings.items()}

    monkeypatch.setattr(page, "_drawings", draw_first)
