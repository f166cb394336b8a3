"""How predictions are cut into passes: everything is covered, limits are kept, a hundred draws need little more than ten."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import abnn
from abnn.attached import Attached
from abnn.networks.by_name import PaperResNet
from abnn.predict import chunks
from abnn.predict.chunks import LIVE, LIVE_SHARED, parts, plan, starts
from tests.model.test_attach import LongSkip


@given(st.integers(1, 500), st.integers(1, 60))
def test_equal_parts_cover_everything(count: int, most: int) -> None:
    size = parts(count, most)
    first = starts(count, size)
    covered = [number for start in first for number in range(start, start + size)]
    assert size <= most and set(covered) == set(range(count)) and first[0] == 0
    assert len(first) == math.ceil(count / min(most, count))  # no more parts than are needed
    assert len(covered) - count < len(first)  # and less than one repeated in each


def network(last: int | None = None, **options: int) -> Attached:
    torch.manual_seed(0)
    return abnn.attach(PaperResNet(**options).eval(), torch.zeros(1, 1, 28, 28), last=last, draws=1)  # type: ignore[arg-type]


def estimate(model: Attached, draws: int, batch: int) -> float:
    """The formula at the top of abnn.predict.chunks."""
    folded, shared = LIVE * model.folded_bytes * batch, LIVE_SHARED * model.shared_bytes * batch
    return 2 * model.noise_bytes * draws + max(draws * folded, shared)


def test_sizes_before_and_after_the_first_attachment() -> None:
    """Of the paper's network: the stem's norm on 26x26 pixels, and the norms of the blocks on 6x6; 64 channels."""
    model = network()
    assert model.shared_bytes == 4 * 2 * 64 * 26**2
    assert model.folded_bytes == 4 * 2 * 64 * 6**2
    deviations = sum(p.numel() for name, p in model.attachment_parameters() if name.endswith("rho"))
    assert model.noise_bytes == 4 * (model.attachment_size - deviations)
    assert network(last=1).folded_bytes == model.folded_bytes
    assert network().double().noise_bytes == 2 * model.noise_bytes


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("draws", [1, 7, 10, 11, 100, 1000])
@pytest.mark.parametrize("batch", [1, 5, 128, 1000])
def test_many_draws_need_little_more_memory_than_ten(draws: int, batch: int, plain: bool) -> None:
    model, x = network(blocks=2), torch.zeros(batch, 1, 28, 28)
    chosen = plan(model, x, draws, plain=plain)
    ten = plan(model, x, 10, plain=plain)
    assert chosen.inputs == ten.inputs or draws < 10
    inputs = chosen.inputs[0].stop
    most = 1.25 * estimate(model, min(draws, 10) + plain, inputs)
    assert estimate(model, len(chosen.draws[0]) + plain, inputs) <= most + 1
    assert {number for each in chosen.draws for number in each} == set(range(draws))
    rows = {number for each in chosen.inputs for number in range(batch)[each]}
    assert rows == set(range(batch)) and len({len(range(batch)[each]) for each in chosen.inputs}) == 1


@pytest.mark.parametrize("inputs", [0.1, 1, 3, 10, 64, 400])
@pytest.mark.parametrize("draws", [1, 10, 50])
def test_limits_are_kept(inputs: float, draws: int) -> None:
    """A limit for so many inputs times draws; one of each is the least there is."""
    model, x = network(), torch.zeros(70, 1, 28, 28)
    chosen = plan(model, x, draws, memory_limit=int(inputs * LIVE * model.folded_bytes) + 1)
    assert len(chosen.draws[0]) * chosen.inputs[0].stop <= max(1, inputs)
    larger = plan(model, torch.zeros(70, 1, 56, 56), draws, memory_limit=int(inputs * LIVE * model.folded_bytes) + 1)
    assert len(larger.draws[0]) * larger.inputs[0].stop <= max(1, inputs / 4)


@pytest.mark.parametrize("inputs", [2, 3, 10, 64, 400])
@pytest.mark.parametrize("draws", [1, 10, 50])
def test_the_plain_network_counts_as_a_draw(inputs: int, draws: int) -> None:
    model, x = network(), torch.zeros(70, 1, 28, 28)
    chosen = plan(model, x, draws, memory_limit=inputs * LIVE * model.folded_bytes + 1, plain=True)
    assert (1 + len(chosen.draws[0])) * chosen.inputs[0].stop <= inputs


def test_the_shared_part_counts_too() -> None:
    model = network(last=1)
    limit = 5 * LIVE_SHARED * model.shared_bytes
    assert plan(model, torch.zeros(70, 1, 28, 28), 1, limit).inputs[0].stop == 5


def test_late_attachments_take_many_draws_at_once() -> None:
    """Where most memory goes into the shared part, it is not computed again for every ten draws."""
    torch.manual_seed(0)
    pooled = [nn.Conv2d(1, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 16), nn.Linear(16, 3)]
    x = torch.zeros(64, 1, 28, 28)
    model = abnn.attach(nn.Sequential(*pooled), x[:1], at="3", draws=1)
    assert len(plan(model, x, 100).draws) == 1 and len(plan(network(), x, 100).draws) == 9


def test_draws_folded_at_the_input_have_no_shared_part() -> None:
    torch.manual_seed(0)
    model = abnn.attach(LongSkip(), torch.zeros(1, 1, 12, 12), at=["down", "up"], draws=1)
    assert model.folds_at_input
    widest = max(model.shared_bytes, model.folded_bytes)
    chosen = plan(model, torch.zeros(40, 1, 12, 12), 4, memory_limit=20 * LIVE * widest)
    assert len(chosen.draws[0]) * chosen.inputs[0].stop <= 20


def test_passes_on_the_cpu_fit_into_a_cache() -> None:
    model, x = network(), torch.zeros(1000, 1, 28, 28)
    rows = len(plan(model, x, 10).draws[0]) * plan(model, x, 10).inputs[0].stop
    assert chunks.CACHE / 2 < rows * model.folded_bytes <= chunks.CACHE


def test_views_are_kept_before_the_first_attachment() -> None:
    model, x = network(), torch.zeros(4096, 1, 28, 28)
    limit = 2**26
    one, five = (plan(model, x, 10, limit, views).inputs[0].stop for views in (1, 5))
    assert 5 * LIVE_SHARED * model.shared_bytes * five <= limit < 5 * LIVE_SHARED * model.shared_bytes * one


def test_views_share_nothing_where_draws_are_folded_at_the_input() -> None:
    model = abnn.attach(LongSkip(), torch.zeros(1, 1, 28, 28), at=["down", "up"])
    x = torch.zeros(64, 1, 28, 28)
    assert plan(model, x, 10, 2**24, 5) == plan(model, x, 10, 2**24)


@pytest.mark.parametrize(("draws", "views"), [(100, 5), (100, 3), (23, 9), (12, 5), (7, 5)])
def test_passes_begin_with_the_first_view(draws: int, views: int) -> None:
    found = plan(network(blocks=2), torch.zeros(8, 1, 28, 28), draws, views=views).draws
    assert {number for each in found for number in each} == set(range(draws))
    assert all(each.start % views == 0 for each in found[:-1])  # the last one ends with the last draw
