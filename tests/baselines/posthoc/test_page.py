"""The page about the scores: its example runs, and no score or setting is missing from it."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from abnn.baselines.posthoc import POSTHOC

PAGE = Path(__file__).parents[3] / "docs" / "posthoc.md"


def test_examples_on_the_page() -> None:
    outcome = doctest.testfile(str(PAGE), module_relative=False, verbose=False)
    assert outcome.attempted > 10 and outcome.failed == 0


@pytest.mark.parametrize("name", POSTHOC)
def test_every_score_has_a_section_that_names_its_settings_and_its_weakness(name: str) -> None:
    text = PAGE.read_text()
    link = re.search(rf"\[`{name}`\]\(#([a-z-]+)\)", text)
    assert link is not None
    sections = {part.split("\n")[0].lower().replace(" ", "-"): part for part in text.split("\n## ")[1:]}
    section = sections[link.group(1)]
    assert "*Misleads*" in section
    for setting in POSTHOC[name]().settings:
        assert f"`{setting}`" in section


def test_every_section_has_a_score() -> None:
    sections = re.findall(r"^## (.*)$", PAGE.read_text(), re.MULTILINE)
    linked = {anchor for anchor in re.findall(r"\]\(#([a-z-]+)\)", PAGE.read_text())}
    assert linked == {section.lower().replace(" ", "-") for section in sections}
