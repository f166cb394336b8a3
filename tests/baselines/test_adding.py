"""The example of docs/adding-a-method.md is a method like all others, and a score that a user writes is one of all scores."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines import REGISTRY, load_trained, make_method
from abnn.baselines.options import check_positive, option
from abnn.baselines.posthoc import POSTHOC, Features, PostHoc, PostHocModel, build_posthoc
from abnn.errors import InputError
from abnn.predict import Plain
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


@pytest.fixture
def top_feature() -> Iterator[type[PostHoc]]:
    """A post-hoc score from outside the package: minus the largest of the last features, over what is usual."""

    @dataclass
    class TopFeature(PostHoc):
        name: ClassVar[str] = "top-feature"
        needs: ClassVar[tuple[str, ...]] = ("last",)
        power: float = option(1.0, check_positive)

        def learn(self, features: Features) -> dict[str, Tensor]:
            return {"usual": features.part("last").amax(1).mean()}

        def values(self, features: Features) -> Tensor:
            return -((features.part("last").amax(1) / self.state["usual"]) ** self.power)

    try:
        yield TopFeature
    finally:
        POSTHOC.pop("top-feature", None)


def test_a_post_hoc_score_from_outside_is_one_of_all(top_feature: type[PostHoc], tmp_path: Path) -> None:
    x, y = torch.rand(20, 6, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3
    network = nn.Sequential(nn.Linear(6, 8), nn.Softplus(), nn.Linear(8, 3))
    model = PostHocModel(Plain(network, x), ["energy", build_posthoc("top-feature", power=2.0)], score="top-feature")
    before = model.fit([(x, y)]).predict(x)
    with torch.no_grad():
        last = network[:2](x).amax(1)
    torch.testing.assert_close(before.score, -((last / last.mean()) ** 2))
    after = PostHocModel.load(model.save(tmp_path / "scores"), model.model).predict(x)
    assert torch.equal(after.score, before.score)
    with pytest.raises(InputError, match="power: got 0; accepted: a positive number"):
        build_posthoc("top-feature", power=0)
    with pytest.raises(InputError, match="name: got 'energy', in tests.baselines.test_adding and abnn.baselines.posth"):
        type("Another", (top_feature,), {"name": "energy", "__module__": __name__})


def test_the_page_lists_every_method_with_its_score() -> None:
    page = (PAGE.parent / "methods.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z-]+)` \|[^|]*\| ([a-z-]+) \|", page, flags=re.MULTILINE))
    assert rows == {name: make_method(name).score for name in REGISTRY}
