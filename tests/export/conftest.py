"""One exported model for all tests of this room."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def folder(exported_pictures: Path) -> Path:
    return exported_pictures
