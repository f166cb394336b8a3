"""Rounds, medians, ratios and bounds."""

from __future__ import annotations

import numpy as np
import pytest
import timing
import torch
from bars import BARS, OURS, PLAIN_GRAPH, Bar, judge
from timing import FEWEST_ROUNDS, Plan, interleaved, ratio, row, timed

CPU = torch.device("cpu")


def test_every_round_calls_each_piece_once_and_starts_with_another():
    order: list[str] = []
    work = {name: lambda name=name: order.append(name) for name in "abc"}
    rows = interleaved(work, CPU, Plan(rounds=4, warm_up=2, least=0.0))
    assert order[:6] == list("aabbcc")  # warm-up
    assert order[6:] == list("abcbcacababc")
    assert all(each["calls"] == 1 and len(each["values"]) == 4 for each in rows.values())


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_short_work_is_called_often_enough_for_the_clock(clock: Clock):
    called: list[float] = []

    def work() -> None:
        clock.spend(0.0625)
        called.append(clock.now)

    rows = interleaved({"a": work}, CPU, Plan(rounds=1, warm_up=1, least=0.5))
    assert rows["a"]["calls"] == 8 and len(called) == 1 + 8
    assert rows["a"]["median"] == 62.5


def test_no_further_round_starts_once_the_budget_is_spent():
    rows = interleaved({"a": lambda: None}, CPU, Plan(rounds=50, warm_up=1, least=0.0, budget=0.0))
    assert len(rows["a"]["values"]) == FEWEST_ROUNDS


def test_time_is_that_of_one_call(clock: Clock):
    assert timed(lambda: clock.spend(0.25), 4, CPU) == 0.25


@pytest.mark.parametrize("values", [[3.0], [1.0, 2.0], [4.0, 1.0, 3.0, 2.0, 10.0]])
def test_quartiles_are_those_of_numpy(values):
    made = row(values, "ms")
    assert [made["quartiles"][0], made["median"], made["quartiles"][1]] == pytest.approx(
        np.percentile(values, [25, 50, 75])
    )
    assert made["values"] == values


def test_ratios_are_taken_within_rounds():
    # A machine that gets ten times slower changes every time, and no ratio.
    slow, fast = row([20, 40, 200], "ms"), row([10, 20, 100], "ms")
    assert ratio(slow, fast) == {"ratio": 2.0, "quartiles": [2.0, 2.0]}


@pytest.mark.parametrize(("bound", "met"), [({"least": 2}, True), ({"least": 3}, False), ({"most": 1}, False)])
def test_a_bar_is_met_on_the_right_side(bound, met):
    rows = {"a": row([5, 5], "ms"), "b": row([2, 2], "ms")}
    judged = Bar("group", "cpu", "a", "b", **bound).judge(rows)
    assert judged["met"] is met and judged["ratio"] == 2.5


def test_bars_need_both_rows_of_their_group_and_device():
    rows = {OURS: row([1], "ms"), "blitz": row([100], "ms")}
    assert [bar["above"] for bar in judge("prediction", "cuda", rows)] == ["blitz"]
    assert judge("prediction", "cuda", {PLAIN_GRAPH: row([1], "ms")}) == []
    assert judge("training", "cpu", rows)[0]["least"] == 3


def test_every_bar_has_exactly_one_bound():
    assert all((bar.least is None) != (bar.most is None) for bar in BARS)
