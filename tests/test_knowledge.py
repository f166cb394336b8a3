"""The warning about attachments that make a frozen network forget."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.data import DataLoader

import abnn
from abnn.errors import AbnnWarning
from abnn.knowledge import BATCHES, compare
from tests.conftest import randomise_attachments
from tests.test_fit import QUIET, attached, data, loader


def batches() -> DataLoader:
    return loader(shuffle=False)


def test_fresh_attachments_cost_nothing() -> None:
    model = attached()
    found = compare(model, batches())
    assert found.inputs == len(data()[0])
    assert found.plain > 0.9
    assert abs(found.lost) < 0.02


def test_overwritten_blocks_are_noticed() -> None:
    model = attached()
    plain = compare(model, batches()).plain
    found = compare(randomise_attachments(model, mean_std=3.0), batches())
    assert found.plain == plain  # of the backbone alone
    assert found.lost > 0.2


def test_only_the_first_batches_are_looked_at() -> None:
    x, y = data()
    seen = 0

    def many() -> object:
        nonlocal seen
        while True:
            seen += 1
            yield x[:4], y[:4]

    assert compare(attached(), many()).inputs == 4 * BATCHES  # type: ignore[arg-type]
    assert seen == BATCHES


def test_fit_warns_when_the_network_forgets() -> None:
    with pytest.warns(AbnnWarning, match=r"cost accuracy: of 96 training inputs, .*lower lr"):
        abnn.fit(attached(), loader(), epochs=1, lr=0.3, **QUIET)


def test_a_good_fit_is_quiet() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        abnn.fit(attached(), loader(), epochs=3, **QUIET)


def test_modes_are_left_alone() -> None:
    model = attached()
    model.train()
    compare(model, batches())
    assert model.training
    assert not torch.is_inference_mode_enabled()
