"""How much attachments count in a prediction: as much as held-out data allow, and where these allow it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from abnn.model.evidence import Evidence
from abnn.scores.combined import NEVER, member_scores
from abnn.tasks.classification import Classification
from abnn.train.combine import members
from abnn.train.combine.gather import LabelledOutliers
from abnn.train.combine.trust import learn_trust


def model(distribution: str = "classes") -> Any:
    """A network of two classes whose only part is how changed an input looks, in units of what is usual."""
    combined = SimpleNamespace(names=["looks changed"], raw_parts=lambda said: said.kinds, in_units=lambda raw: raw)
    task = SimpleNamespace(distribution=distribution, samples=Classification().samples)
    return SimpleNamespace(combined=combined, task=task)


def said(looks: list[float], plain: list[float], attached: list[float]) -> Evidence:
    """Evidence of inputs whose first class gets the probabilities that are given."""

    def logits(probabilities: list[float]) -> Tensor:
        p = torch.tensor(probabilities)
        return torch.stack([p, 1 - p], 1).log()

    none = torch.zeros(len(looks), 0)
    return Evidence(logits(plain), logits(attached), None, None, None, none, torch.tensor(looks)[:, None])


ORDINARY = said([0.0] * 1000, [0.9] * 1000, [0.1] * 1000), torch.zeros(1000, dtype=torch.int64)
"""Attachments are wrong about all of them, but they look ordinary."""


@pytest.mark.parametrize(
    ("attached", "overlap", "trust"),
    [(0.6, 0.0, 1.0), (0.9, 0.0, 0.5), (0.1, 0.0, 0.5), (0.6, 1.0, 0.75), (0.6, 0.4, 0.9), (0.9, 1.0, 0.5)],
)
def test_attachments_count_more_where_that_reads_more(attached: float, overlap: float, trust: float) -> None:
    """Changed inputs that the plain network gets wrong with 0.3: of 0.6 only more than half says so, of 0.9 the half does, and 0.1 never."""
    count = 50
    evidence = said([5.0] * count, [0.3] * count, [attached] * count)
    changed = LabelledOutliers(evidence, torch.zeros(count, dtype=torch.int64))
    assert learn_trust(model(), *ORDINARY, changed, overlap) == pytest.approx((trust, 1.0))


def test_the_network_stands_alone_as_far_as_ordinary_inputs_need_it() -> None:
    """Of 1,000 one may become wrong, if another one becomes right."""
    labels = torch.zeros(1000, dtype=torch.int64)
    usual, plain = [0.0] * 997, [0.9] * 997
    one = said([*usual, 2.5, 2.5, 0.0], [*plain, 0.6, 0.4, 0.6], [*plain, 0.1, 0.9, 0.1])
    assert learn_trust(model(), one, labels, None, 0.0) == (0.5, 1.0)
    none_learnt = said([*usual, 2.5, 2.5, 0.0], [*plain, 0.6, 0.9, 0.6], [*plain, 0.1, 0.9, 0.1])
    assert learn_trust(model(), none_learnt, labels, None, 0.0)[1] == 3.0
    two = said([*usual, 5.0, 5.0, 20.0], [*plain, 0.6, 0.6, 0.4], [*plain, 0.1, 0.1, 0.9])
    assert learn_trust(model(), two, labels, None, 0.0)[1] == 6.0
    far = said([*usual, 20.0, 0.0, 0.0], [*plain, 0.6, 0.9, 0.9], [*plain, 0.1, 0.1, 0.1])
    assert learn_trust(model(), far, labels, None, 0.0)[1] == NEVER


def test_predictions_that_are_no_class_have_the_usual_share() -> None:
    assert learn_trust(model("labels"), *ORDINARY, None, 0.0) == (0.5, 1.0)


@pytest.mark.parametrize(("gap", "overlap"), [(0.0, 0.0), (1.0, 0.0), (9.0, 1.0)])
def test_data_are_not_new_to_a_network_that_finds_near_inputs_at_once(gap: float, overlap: float) -> None:
    """Gaussian energies whose means are 0, 1 and 9 apart: AUROCs of 0.5, 0.76 and 1."""
    combined = SimpleNamespace(names=["energy"], centre=torch.zeros(1))
    rows = torch.randn(2, 4000, 1, generator=torch.Generator().manual_seed(0))
    assert members.training_overlap(combined, {"ordinary": rows[0], "near": rows[1] + gap}) == pytest.approx(overlap)
    assert members.training_overlap(combined, {}) == 1.0


def order_of(less: str, more: str, groups: dict[str, Tensor], overlap: float, inputs: int) -> float:
    """The AUROC of two kinds of inputs of two parts each by small networks that have learnt from these groups."""
    sizes = {"linear": (8, 2, 1), "inner": (8, 2, 16), "offset": (8, 1, 16), "outer": (8, 16, 1)}
    learnt = {name: torch.zeros(size) for name, size in sizes.items()}
    combined = SimpleNamespace(names=["distance", "energy"], member_parts=2, **learnt)
    members.fit_members(combined, groups, overlap, inputs, torch.Generator().manual_seed(0))
    return members.auroc(*(member_scores(groups[name], **learnt).mean(0) for name in (less, more)))


def around(places: dict[str, Tensor]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: 0.5 * torch.randn(500, 2, generator=generator) + place for name, place in places.items()}


def test_destroyed_inputs_count_above_near_ones_where_data_are_not_new() -> None:
    """Two parts of which one has the near inputs highest, the other the destroyed ones."""
    groups = around({"ordinary": torch.zeros(2), "near": torch.tensor([3.0, 0]), "destroyed": torch.tensor([0, 2.0])})
    new, known = (order_of("near", "destroyed", groups, overlap, 1000) for overlap in (0.0, 1.0))
    assert known > new + 0.02


def test_that_changed_inputs_are_excused_needs_many_inputs() -> None:
    """Two parts of which one has the changed inputs highest, the other the near ones, by a little."""
    groups = around({"ordinary": torch.zeros(2), "near": torch.tensor([0.3, 0.5]), "changed": torch.tensor([2.0, 0])})
    groups["readable"] = groups["changed"]
    few, some, many = (
        order_of("changed", "near", groups, 0.0, inputs) for inputs in (members.ENOUGH_INPUTS.start, 120, 1000)
    )
    assert few < 0.3 and many > 0.6 and few < some < many


@pytest.mark.parametrize(
    ("order", "overlap", "weight"),
    [(1, 0, 8), (0.72, 0, 8), (0.65, 0, 5), (0.58, 0, 2), (0, 0, 2), (1, 1, 4), (0, 1, 4)],
)
def test_changed_inputs_are_excused_as_far_as_the_network_does(order: float, overlap: float, weight: float) -> None:
    """The share of pairs that the better of energy and odds has in order; odds have none."""
    combined = SimpleNamespace(names=["energy", "odds"])
    changed = torch.stack([torch.linspace(0, 1, 1000), torch.ones(1000)], 1)
    groups = {"changed": changed, "near": torch.tensor([[order, 0.0]])}
    weights = members.pair_weights(combined, groups, overlap, 1000)
    assert weights["changed", "near"] == pytest.approx(weight, abs=0.05)
    others = members.pair_weights(combined, {}, overlap, 1000)
    assert all(weights[pair] == others[pair] for pair in others if pair != ("changed", "near"))


@pytest.mark.parametrize(
    ("right", "readable", "overlap", "weight"),
    [(80, 60, 0, 8), (80, 44, 0, 8), (80, 40, 0, 5), (80, 36, 0, 2), (50, 10, 0, 2), (0, 0, 0, 8), (80, 10, 1, 4)],
)
def test_changed_inputs_are_excused_as_far_as_the_network_reads_them(
    right: int, readable: int, overlap: float, weight: float
) -> None:
    """Of 100 ordinary and of 100 changed inputs so many are right. The network's own scores have these below near ones."""
    combined = SimpleNamespace(names=["energy", "odds"])
    sizes = {"ordinary": 100, "changed": 100, "near": 10, "right": right, "readable": readable}
    groups = {name: torch.full((count, 2), float(name == "near")) for name, count in sizes.items()}
    weights = members.pair_weights(combined, groups, overlap, 1000)
    assert weights["changed", "near"] == pytest.approx(weight)
