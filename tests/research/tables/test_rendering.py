import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abnn.errors import InputError
from research.metrics import paired_test
from research.tables import Column, render, render_paired
from tests.research.tables.samples import COLUMNS, TWO, record


def test_markdown():
    assert render(TWO, COLUMNS) == (
        "| name | seeds | acc % ↑ | ECE ↓ |\n"
        "|---|---:|---:|---:|\n"
        "| attached_1 | 3 | **96.0 ± 1.0** | **0.010 ± 0.000** |\n"
        "| plain | 3 | 92.0 ± 2.0 | 0.020 ± 0.000 |\n"
    )


@settings(max_examples=30, deadline=None)
@given(
    values=st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=12), min_size=1, max_size=4),
    shuffling=st.integers(0, 1000),
)
def test_the_order_of_records_never_matters(values: list[list[float]], shuffling: int):
    records = [record(f"m{row}", seed, acc=x) for row, each in enumerate(values) for seed, x in enumerate(each)]
    shuffled = records[:]
    random.Random(shuffling).shuffle(shuffled)
    assert render(records, COLUMNS[:1]) == render(shuffled, COLUMNS[:1])


def test_best_is_bold_only_against_others_and_ties_share_it():
    def bold(better: str, *values: float) -> list[str]:
        records = [record(f"m{number}", 0, acc=value) for number, value in enumerate(values)]
        lines = render(records, [Column("acc", "acc", better=better)]).splitlines()[2:]
        return [line.split(" ")[1] for line in lines if "**" in line]

    assert bold("higher", 0.9) == []
    assert bold("higher", 0.9, 0.95, 0.95001) == ["m1", "m2"]
    assert bold("lower", 0.9, 0.95, 0.90001) == ["m0", "m2"]
    assert bold("neither", 0.9, 0.95) == []


def test_undefined_metrics_and_single_seeds_are_shown_as_such():
    records = [record("a", 0, acc=0.5), record("a", 1, acc=0.7), record("a", 2, x=1.0), record("b", 0, x=1.0)]
    lines = render(records, [Column("acc", "acc"), Column("x", "x", 1.0)]).splitlines()[2:]
    assert lines == ["| a | 3 | 60.0 ± 14.1 (n=2) | **1.0 (n=1)** |", "| b | 1 | – | **1.0** |"]


def test_zero_has_no_sign_and_bars_do_not_break_the_table():
    text = render([record("a|b\nc", 0, acc=-0.00001)], [Column("x|y", "acc")])
    assert "| a\\|b c | 1 | 0.0 |" in text and "x\\|y ↑" in text


def test_rows_can_be_chosen():
    lines = render(TWO, COLUMNS, rows=["plain", "attached_1"]).splitlines()[2:]
    assert [line.split(" ")[1] for line in lines] == ["plain", "attached_1"]


def test_errors_say_what_to_do():
    for arguments, message in [
        (([], COLUMNS), "records: got none"),
        ((TWO, [Column("x", "ac")]), "Did you mean 'acc'"),
        ((TWO, [Column("x", "zzzzzzzz")]), "metrics"),
        ((TWO, COLUMNS, ["plane"]), "Did you mean 'plain'"),
        (([*TWO, record("plain", 0, "other", acc=0.1)], COLUMNS), "e/plain-seed0.*other/plain-seed0.*Filter by exp"),
    ]:
        with pytest.raises(InputError, match=message):
            render(*arguments)


def test_paired_uses_the_seeds_that_both_have():
    records = [*TWO, record("plain", 7, acc=0.1), record("attached_1", 8, acc=0.2), record("attached_1", 7, ece=0.1)]
    expected = paired_test([0.95, 0.96, 0.97], [0.90, 0.92, 0.94])
    difference = f"+{100 * expected.mean_difference:.1f} (p={expected.p_value:.2g}, n=3)"
    assert render_paired(records, COLUMNS[:1], "plain").splitlines()[2:] == [f"| attached_1 | {difference} |"]
    text = render_paired(TWO, COLUMNS, against="plain")
    assert text.splitlines()[0] == "| name, minus plain | acc % ↑ | ECE ↓ |"
    assert text.splitlines()[2:] == ["| attached_1 | +4.0 (p=0.25, n=3) | -0.010 (p=0.25, n=3) |"]
    with pytest.raises(InputError, match=r"seeds \[0, 1, 2\].*\[5\].*Run both"):
        render_paired([*TWO[:3], record("x", 5, acc=1.0)], COLUMNS[:1], "x")
    with pytest.raises(InputError, match="against"):
        render_paired(TWO, COLUMNS, against="nobody")


def test_a_metric_that_one_model_lacks_costs_one_cell():
    flawless = [record("flawless", seed, acc=1.0) for seed in range(3)]
    text = render_paired([*TWO, *flawless], COLUMNS, against="plain")
    assert text.splitlines()[3] == "| flawless | +8.0 (p=0.25, n=3) | – |"
    with pytest.raises(InputError, match="at least one seed that both have"):
        render_paired([*TWO, record("x", 5, acc=1.0)], COLUMNS, against="plain")
