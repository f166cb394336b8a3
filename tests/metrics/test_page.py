"""The page about the metrics: its examples are run, its fractions are recomputed, and no metric is missing from it."""

from __future__ import annotations

import doctest
import math
import re
from pathlib import Path

from abnn import metrics as m

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
TEXT = " ".join(PAGE.read_text().split())  # a line break is no difference
FRACTION = re.compile(r"(\d+)/(\d+) = (\d+\.?\d*)")


def test_examples_on_the_page() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, verbose=False)
    assert outcome.attempted > 30 and outcome.failed == 0


def test_numbers_worked_out_by_hand() -> None:
    found = FRACTION.findall(TEXT)
    assert len(found) > 15
    for numerator, denominator, value in found:
        assert round(int(numerator) / int(denominator), 6) == float(value)


def test_hand_results_that_are_no_fractions() -> None:
    assert "4.5 / sqrt(4.5 x 5) = 0.948683" in TEXT and round(4.5 / math.sqrt(4.5 * 5), 6) == 0.948683
    logarithms = [math.log(p) for p in (0.9, 0.2, 0.6, 0.7)]
    assert "have the mean -0.645575" in TEXT and round(sum(logarithms) / 4, 6) == -0.645575
    cost = [sum(1 / k for k in range(rank, 10_001)) for rank in (1, 5001)]
    assert "costs 14 times" in TEXT and round(cost[0] / cost[1]) == 14


def test_every_function_is_on_the_page() -> None:
    names = [name for name in m.__all__ if name.islower()]
    assert len(names) >= 14
    assert [name for name in names if not re.search(rf"\b{name}\b", TEXT)] == []


def test_links_lead_to_headings() -> None:
    text = PAGE.read_text()
    headings = {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings
