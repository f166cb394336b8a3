"""Rows of a table that are moved away: one network, as the record has twenty."""

from __future__ import annotations

import json
from pathlib import Path

from research.moved import STEPS, main


def test_what_is_far_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- abnn:table moved -->\n<!-- /abnn:table -->\n")
    main(["--seeds", "1", "--output", str(tmp_path / "moved.json"), "--into", str(page)])
    row = json.loads((tmp_path / "moved.json").read_text())["networks"][0]
    assert len(row["accepted"]) == len(row["mean"]) == len(row["median"]) == len(STEPS)
    assert row["accepted"][0] > 0.85 and max(row["accepted"][STEPS.index(4) :]) < 0.05
    assert all(more > less for less, more in zip(row["mean"][1:], row["mean"][2:]))
    assert "the mean score grows at every step in 1 networks" in page.read_text()
