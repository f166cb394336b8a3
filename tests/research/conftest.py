from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from abnn.data.digits import load_digits


@pytest.fixture(scope="session", autouse=True)
def digits_made_once() -> Iterator[None]:
    """Printed digits and patches of photographs take a second to make."""
    once = cache(load_digits)
    with pytest.MonkeyPatch.context() as patch:
        for module in ("research.tasks", "research.theory.trial", "research.theory.__main__"):
            patch.setattr(f"{module}.load_digits", once)
        yield
