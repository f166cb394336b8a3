"""What a prediction costs: a record with both networks' times, and its rows in the page."""

from __future__ import annotations

import json

import cost
import pytest


def test_record_and_table(tmp_path, monkeypatch):
    monkeypatch.setitem(cost.BATCHES, "cpu", {"resnet50": (2,), "paper-resnet": (4, 1)})
    page = tmp_path / "cost.md"
    page.write_text("<!-- abnn:table cost -->\n<!-- /abnn:table -->\n")
    assert cost.main(["--tiny", "--results", str(tmp_path / "cost"), "--page", str(page)]) == 0
    record = json.loads((tmp_path / "cost" / "cpu.json").read_text())
    assert [row["batch"] for row in record["rows"]] == [4, 1]
    for row in record["rows"]:
        times = row["default"]["median"] / row["plain"]["median"]
        assert row["times_plain"]["ratio"] == pytest.approx(times) and row["attached_blocks"] == 3
    lines = [line for line in page.read_text().splitlines() if line.startswith("| the paper's network")]
    assert [line.split(" | ")[1] for line in lines] == ["4", "1"] and all("| – | – |" in line for line in lines)


def test_both_devices_stand_side_by_side():
    def record(gpu: str | None, batch: int) -> dict[str, object]:
        row = {"network": "resnet50", "batch": batch, "plain": {"median": 2.0}, "default": {"median": 3.0}}
        machine = {"gpu": gpu, "processor": "a processor", "threads": 2}
        return {
            "rows": [{**row, "times_plain": {"ratio": 1.5}}],
            "machine": machine,
            "versions": {"torch": "2"},
            "code": {},
        }

    fit = {"images": 2500, "seconds": 18.7, "extra_gigabytes": 1.16}
    text = cost.table({"cpu": record(None, 8), "cuda": {**record("a GPU", 64), "fit": fit}})
    assert "| ResNet-50, 224 pixels | 64 or 8 | 2 → 3 | 1.50 | 2 → 3 | 1.50 |" in text
    assert "a processor, 2 threads" in text and "2,500 images, 1,000 classes: 19 s, and 1.2 GB" in text
