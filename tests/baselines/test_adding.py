"""The example of docs/adding-a-method.md is a method like all others."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from abnn.baselines import REGISTRY, load_trained, make_method
from abnn.errors import InputError
from tests.baselines.samples import digits, quick

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def example() -> Iterator[types.ModuleType]:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) == 1
    module = types.ModuleType("abnn.baselines.smoothing")
    sys.modules[module.__name__] = module  # where dataclasses look for the names in annotations
    try:
        exec(compile(blocks[0], str(PAGE), "exec"), module.__dict__)  # noqa: S102
        yield module
    finally:
        del sys.modules[module.__name__]
        REGISTRY.pop("label-smoothing", None)


def test_the_example_follows_its_formula(example: types.ModuleType) -> None:
    logits = torch.randn(6, 4, dtype=torch.float64)
    y = torch.tensor([0, 1, 2, 3, 0, 1])
    wanted = F.cross_entropy(logits, y, label_smoothing=0.3)
    assert example.smoothed_cross_entropy(logits, y, 0.3).item() == pytest.approx(wanted.item(), rel=1e-12)


def test_the_example_trains_predicts_and_loads(example: types.ModuleType, tmp_path: Path) -> None:
    model = quick(make_method("label-smoothing", "strong"))
    loaded = load_trained(model.save(tmp_path / "model"))
    x = digits().x[:5]
    assert torch.equal(model.predict(x, score="logit-margin").score, loaded.predict(x, score="logit-margin").score)
    assert loaded.method.to_config()["softness"] == 0.3


def test_names_belong_to_one_method(example: types.ModuleType) -> None:
    known = REGISTRY["oe"]
    with pytest.raises(InputError, match="name: got 'oe', in tests.baselines.test_adding and abnn.baselines.oe;"):
        type("Another", (example.LabelSmoothing,), {"name": "oe", "__module__": __name__})
    assert REGISTRY["oe"] is known


def test_the_page_lists_every_method_with_its_score() -> None:
    page = (PAGE.parent / "methods.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|[^|]*\| ([a-z-]+) \|", page, flags=re.MULTILINE))
    assert rows == {name: make_method(name).score for name in REGISTRY}
