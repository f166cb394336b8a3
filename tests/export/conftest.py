"""One exported model for all tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.models import picture_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of pictures as this process exports it: that of another one may differ from picture_model() here by rounding."""
    return picture_model().export(tmp_path_factory.mktemp("exported") / "pictures")
