"""Late attachments on the digits, at sizes that take seconds: the record holds every row, and the page its table."""

from __future__ import annotations

import json
from dataclasses import replace

import late
import pytest

from abnn.data.digits import Labelled, load_digits

FEW = 64


def test_record_and_table(tmp_path, monkeypatch, capsys):
    data = load_digits(0)
    few = {name: Labelled(*(part[:FEW] for part in getattr(data, name))) for name in ("train", "test", "semi", "full")}
    for module in ("late", "research.tasks"):
        monkeypatch.setattr(f"{module}.load_digits", lambda seed: replace(data, **few))
    monkeypatch.setattr("abnn.demo.digits.BACKBONE_EPOCHS", 1)
    page, output = tmp_path / "cost.md", tmp_path / "late" / "digits.json"
    page.write_text("before\n<!-- abnn:table late digits -->\n<!-- /abnn:table -->\nafter\n")
    assert late.main(["--tiny", "--output", str(output), "--page", str(page)]) == 0
    record = json.loads(output.read_text())
    assert set(record["rows"]) == {late.PLAIN, "last block", "all blocks"}
    for rows in record["rows"].values():
        assert len(rows) == 1 and rows[0]["ms_per_image"] > 0
        assert all(0 <= value <= 1 for value in rows[0]["metrics"].values())
    sizes = [record["rows"][name][0]["size"] for name in (late.PLAIN, "last block", "all blocks")]
    assert sizes[0] == 0 < sizes[1] < sizes[2]
    assert record["rows"][late.PLAIN][0]["times_plain"] == 1
    lines = page.read_text().splitlines()
    names = [line.split("|")[1].strip() for line in lines if line.startswith("|")]
    assert names == ["attachments at", "---", late.PLAIN, "last block", "all blocks"]
    first = page.read_text()
    page.write_text(first.replace("last block", "?"))
    assert late.main(["--table", "--output", str(output), "--page", str(page)]) == 0
    assert page.read_text() == first


@pytest.mark.parametrize(("values", "shown"), [([98.76], "98.8"), ([1.0, 2.0, 3.0], "2.0 ± 1.0")])
def test_spread(values, shown):
    assert late.spread(values) == shown


def test_names():
    assert [late.name_of(last, 6) for last in late.LAST] == [
        "last block",
        "last 2 blocks",
        "last 3 blocks",
        "all blocks",
    ]
