"""Examples of everything that is read, made once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.campaign import Worker
from tests.fuzz.subjects import make_samples


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_samples(tmp_path_factory.mktemp("fuzz") / "samples")


@pytest.fixture(scope="session")
def worker(samples: Path) -> Iterator[Worker]:
    """Whatever the cases need; its application is closed at the end."""
    made = Worker(samples)
    with made.stack:
        yield made
