"""The ways of convolving, timed once each on small shapes: a row for every shape, and the table in the page."""

from __future__ import annotations

import json

import ways

from abnn.bayes import convolutions
from abnn.bayes.convolutions import WAYS


def test_record_and_table(tmp_path, monkeypatch):
    convolutions._choices.clear()
    small = {"paper's network": (8, 1, 6, 3, (1, 3, 99)), "wide": (99, 1, 6, 3, (1,))}
    monkeypatch.setattr(ways, "SHAPES", small)
    page = tmp_path / "cost.md"
    page.write_text("<!-- abnn:table ways cpu -->\n<!-- /abnn:table -->\n")
    assert ways.main(["--tiny", "--results", str(tmp_path / "ways"), "--page", str(page)]) == 0
    record = json.loads((tmp_path / "ways" / "cpu.json").read_text())
    assert [(row["inputs"], row["folded"]) for row in record["rows"]] == [(1, True), (1, False), (3, True), (3, False)]
    for row in record["rows"]:
        assert set(row["ms"]) == set(WAYS) and all(each > 0 for each in row["ms"].values()) and row["taken"] in WAYS
    lines = [line for line in page.read_text().splitlines() if line.startswith("| paper's network")]
    assert len(lines) == 4 and all(line.count("**") == 2 for line in lines)
    before = page.read_text()
    page.write_text(before.replace("paper's network", "?"))
    ways.main(["--table", "--results", str(tmp_path / "ways"), "--page", str(page)])
    assert page.read_text() == before
