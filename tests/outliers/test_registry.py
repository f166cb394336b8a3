"""A new kind of outliers is one new file; its name, its config and its place in mixtures come with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from abnn.config import PRESETS
from abnn.errors import InputError
from abnn.outliers import DEFAULT, PRESET, REGISTRY, make_outliers

FILE = '''
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from abnn.outliers import Change


@dataclass(kw_only=True, eq=False)
class Dim(Change):
    """``(1 - severity * amount) x``: every value nearer to 0."""

    name: ClassVar[str] = "dim"
    uses_range = False
    amount: float = 1.0

    def change(self, x: Tensor, dial: Tensor, rng: object) -> Tensor:
        return (1 - dial * self.amount) * x
'''


def test_a_kind_from_outside_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dim_outliers.py").write_text(FILE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("abnn.outliers.base.REGISTRY", dict(REGISTRY))  # only for this test
    import dim_outliers  # type: ignore[import-not-found]

    monkeypatch.delitem(sys.modules, "dim_outliers")
    x, y = torch.ones(8, 1, 4, 4), torch.zeros(8)
    made = make_outliers("dim", amount=0.5)(x, y, severity=1.0)
    assert torch.equal(made.x, x / 2) and torch.equal(made.severity, torch.ones(8))
    assert make_outliers({"name": "dim", "amount": 0.25}).to_config()["amount"] == 0.25
    mixed = make_outliers("mixed", parts=["dim", dim_outliers.Dim(amount=0.5)])(x, y).x
    assert sorted(mixed.flatten(1).mean(1).tolist()) == [0.0] * 4 + [0.5] * 4
    with pytest.raises(InputError, match="Did you mean 'dim'"):
        make_outliers("dimm")


def test_none_is_none_and_the_default_has_one_name() -> None:
    assert make_outliers(None) is None
    assert make_outliers().name == DEFAULT == PRESETS["default"].outliers
    assert PRESET not in REGISTRY
    with pytest.raises(InputError, match="options: got scale"):
        make_outliers(None, scale=2.0)  # type: ignore[call-overload]
