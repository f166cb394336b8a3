"""One exported model for all tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.export.models import picture_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return picture_model().export(tmp_path_factory.mktemp("pictures") / "out")
