"""The warning about attachments that make a frozen network forget. Bounded ones cannot, so these are the authors'."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

import abnn
from abnn.baselines import TrainConfig, make_method, train_method
from abnn.errors import AbnnWarning
from abnn.train.knowledge import BATCHES, Knowledge, compare, recall, warn_if_lost
from tests.conftest import randomise_attachments
from tests.train.test_fit import QUIET, attached, backbone, data, loader, quiet


def batches() -> DataLoader:
    return loader(shuffle=False)


def test_fresh_attachments_cost_nothing() -> None:
    found = compare(attached(), batches())
    assert found.inputs == len(data()[0])
    assert found.plain > 0.9 * found.inputs
    assert not found.lost


def test_overwritten_blocks_are_noticed() -> None:
    model = attached(preset="authors")
    plain = compare(model, batches()).plain
    found = compare(randomise_attachments(model, mean_std=3.0), batches())
    assert found.plain == plain  # of the backbone alone
    assert found.attached == found.plain - found.forgotten + found.learnt
    assert found.lost


@pytest.mark.parametrize(
    ("forgotten", "learnt", "lost"),
    [
        (0, 0, False),
        (20, 0, False),  # two points of a thousand inputs, no more
        (30, 0, True),
        (0, 300, False),  # more accurate than before
        (330, 300, False),  # three points, within what chance makes of so many changes
        (400, 300, True),
    ],
)
def test_a_loss_is_more_than_two_points_and_more_than_chance(forgotten: int, learnt: int, lost: bool) -> None:
    found = Knowledge(1000, 600, 600 - forgotten + learnt, forgotten, learnt)
    assert found.lost is lost


def test_one_forgotten_input_of_few_is_no_loss() -> None:
    assert not Knowledge(inputs=20, plain=20, attached=19, forgotten=1, learnt=0).lost


def test_only_the_first_batches_of_training_data_are_looked_at() -> None:
    x, y = data()
    seen = 0

    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        nonlocal seen
        while True:
            seen += 1
            yield x[:4], y[:4]

    warn_if_lost(attached(), endless())
    assert seen == BATCHES


def test_fit_warns_when_the_network_forgets() -> None:
    with pytest.warns(AbnnWarning, match=r"cost accuracy: of 96 training inputs, .*with attachments and .*lower lr"):
        abnn.fit(attached(preset="authors"), loader(), **quiet(epochs=1, lr=0.3, freeze_backbone=True))


def test_so_does_the_method() -> None:
    method = make_method("abnn", "authors", attachment_lr=0.3, freeze=True)
    with pytest.warns(AbnnWarning, match="cost accuracy"):
        train_method(method, backbone(), loader(), 1, progress=False, config=TrainConfig(accelerator="cpu"))


def test_a_backbone_that_learns_along_is_compared_with_what_it_was() -> None:
    model = attached()
    known = recall(model, batches())
    assert sum(int(each.sum()) for each in known) == compare(model, batches()).plain
    text = (
        r"Training the backbone with the attachments cost accuracy: of 96 training inputs, .* now and .* before. Freeze"
    )
    with pytest.warns(AbnnWarning, match=text):
        abnn.fit(model, loader(), **quiet(freeze_backbone=False, epochs=1, lr=0.3, backbone_lr=1.0))
    assert not compare(model, batches()).lost  # which looks at the backbone as it is now


@pytest.mark.parametrize(
    ("right", "chance", "at_chance"),
    [
        (100, 100.0, True),
        (118, 100.0, True),  # two standard deviations are 19
        (120, 100.0, False),
        (20, 100.0, True),  # labels are in another order
        (950, 950.0, True),  # always the most frequent class
        (1000, 1000.0, False),  # all labels are equal: nothing can be said
        (500, 0.0, False),  # not known
    ],
)
def test_chance_is_what_labels_in_any_order_give(right: int, chance: float, at_chance: bool) -> None:
    assert Knowledge(1000, right, right, 0, 0, chance=chance).at_chance is at_chance


def test_chance_is_the_mean_over_all_orders_of_labels() -> None:
    x, y = data()
    model = attached()
    with torch.no_grad():
        label = model.backbone(x).argmax(1)
    expected = torch.stack([(label == y.roll(steps)).sum() for steps in range(len(y))]).double().mean()
    assert compare(model, batches()).chance == pytest.approx(float(expected))


def test_fit_warns_of_labels_that_are_not_of_the_inputs() -> None:
    x, y = data()
    turned = [(x, (y + 1) % attached().classes)]
    with pytest.warns(
        AbnnWarning, match=r"backbone: got a network at chance: of 96 training inputs .*order of classes"
    ):
        abnn.fit(attached(), turned, epochs=0, **QUIET)


def test_a_backbone_that_learns_along_may_begin_at_chance() -> None:
    x, y = data()
    turned = [(x, (y + 1) % attached().classes)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*at chance", AbnnWarning)
        abnn.fit(attached(), turned, **quiet(freeze_backbone=False, epochs=1))


def test_good_fits_are_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        abnn.fit(attached(), loader(count=120), epochs=3, **QUIET)
        abnn.fit(attached(), loader(count=120), **quiet(freeze_backbone=False, epochs=3))


def test_modes_and_draws_are_left_alone() -> None:
    model = attached()
    model.train()
    model.resample(3)
    compare(model, batches())
    assert model.training
    assert model.draws == 3
    assert not torch.is_inference_mode_enabled()
