"""What tests of several commands share."""

from __future__ import annotations

import pytest

from abnn.evaluate.report import measure, page


def draw_fewer(patch: pytest.MonkeyPatch) -> None:
    """One figure in each section of a page, and few resamples: they take most of the time."""
    patch.setattr(measure, "MOST_RESAMPLES", 10)
    patch.setattr(measure, "FEWEST_RESAMPLES", 10)
    draw = page._drawings
    patch.setattr(page, "_drawings", lambda models: {name: each[:1] for name, each in draw(models).items()})


@pytest.fixture
def short_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """A learnt score of few steps: where it is not looked at, it takes most of the time of a fit."""
    monkeypatch.setattr("abnn.train.combine.members.STEPS", 10)
    monkeypatch.setattr("abnn.train.combine.gather.OUTLIERS", 100)


@pytest.fixture
def few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    draw_fewer(monkeypatch)
