from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.data.server import FileServer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made = FileServer()
    yield made
    made.close()
