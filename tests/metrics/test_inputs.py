"""Bad arrays at every door: the error names the argument, what came, what is accepted and what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from abnn import metrics as m
from abnn.errors import InputError

GOOD = [0.0, 1.0, 2.0]
FLAGS = [True, False, True]
TWO_SETS = [
    m.detection,
    m.auroc,
    m.roc_curve,
]
THREE_SETS: list[Callable[..., Any]] = [
    m.tiers,
    m.ordered_triples,
    m.cluster_confusion,
    partial(m.tier_confusion, thresholds=m.TierThresholds(0.0, 1.0)),
]
FLAGGED = [
    m.misclassification,
    m.selective,
    m.risk_coverage,
]
BAD_SCORES = [
    ([], "got an empty array; accepted: a 1-d array of finite numbers.*any inputs at all"),
    (torch.zeros(0), "got an empty array"),
    ([1.0, float("nan"), float("inf")], "got 2 of 3 values not finite .the first, nan, at index 1.*flatter"),
    ([1.0, float("-inf")], "got 1 of 2 values not finite .the first, -inf"),
    (np.zeros((4, 1)), r"got an array of shape \(4, 1\).*reshape"),
    (torch.zeros(2, 3), r"got an array of shape \(2, 3\)"),
    (0.5, r"got an array of shape \(\)"),
    (["a", "b"], "got an array of type <U1"),
    ([1 + 2j], "got an array of type complex128"),
    ([[1.0], [1.0, 2.0]], "got something that is no array"),
    (None, "got an array of type object"),
    ([True, False], "got booleans.*order of the arguments"),
]
BAD_FLAGS = [
    ([], "got an empty array"),
    ([True, False], "got 2 values; accepted: 3, as many as scores.*same inputs in the same order"),
    ([0.0, 1.0, 0.5], "got the value 0.5; accepted: a 1-d array of booleans"),
    ([0.0, 1.0, float("nan")], "got the value nan"),
    ([FLAGS], r"got an array of shape \(1, 3\)"),
    (["yes", "no", "yes"], "got an array of type"),
]


@pytest.mark.parametrize(("bad", "message"), BAD_SCORES)
@pytest.mark.parametrize("function", TWO_SETS)
def test_two_sets(function: Callable[..., Any], bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^id_scores: {message}"):
        function(bad, GOOD)
    with pytest.raises(InputError, match=f"^ood_scores: {message}"):
        function(GOOD, bad)


@pytest.mark.parametrize(("bad", "message"), BAD_SCORES)
@pytest.mark.parametrize("function", THREE_SETS)
def test_three_sets(function: Callable[..., Any], bad: Any, message: str) -> None:
    for position, name in enumerate(("id_scores", "semi_scores", "full_scores")):
        sets: list[Any] = [GOOD, GOOD, GOOD]
        sets[position] = bad
        with pytest.raises(InputError, match=f"^{name}: {message}"):
            function(*sets)


@pytest.mark.parametrize("function", FLAGGED)
def test_scores_with_flags(function: Callable[..., Any]) -> None:
    for bad, message in BAD_SCORES:
        with pytest.raises(InputError, match=f"^scores: {message}"):
            function(bad, FLAGS)
    for bad, message in BAD_FLAGS:
        with pytest.raises(InputError, match=f"^correct: {message}"):
            function(GOOD, bad)


@pytest.mark.parametrize(("bad", "message"), BAD_SCORES)
def test_other_functions(bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^runs: {message}"):
        m.over_seeds(bad)


def test_finite_scores_whose_sum_overflows_are_fine() -> None:
    assert m.auroc([-1.7e308, -1.7e308], [1.7e308, 1.7e308]) == 1.0


def test_curves_become_plain_data() -> None:
    curves = (
        m.roc_curve(GOOD, GOOD),
        m.risk_coverage(GOOD, FLAGS),
        m.reliability([0.5, 0.6, 0.7], FLAGS),
    )
    for curve in curves:
        assert json.loads(json.dumps(curve.to_dict(), allow_nan=False)) == curve.to_dict()
        assert curve.numbers() == {}


def test_every_public_name_exists_and_no_other() -> None:
    for name in m.__all__:
        assert getattr(m, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'fpr95'"):
        m.fpr95  # noqa: B018


def test_metrics_are_over_arrays_and_need_no_torch() -> None:
    for path in Path(m.__file__).parent.glob("*.py"):
        assert not re.search(r"^\s*(import|from) torch", path.read_text(), re.MULTILINE), path.name
