"""Networks that others wrote, through everything that a user does: a few of them here, all of them by ``python -m research.models``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from research.models.networks import BY_NAME, CASES
from research.models.run import CHECKS, main, table, walk

SOME = ("BERT", "GPT-2", "lcnet_035", "LSTM, 2 layers", "LayoutLM, words and boxes", "DistilBERT, one number")
RECORDS = Path(__file__).parents[2] / "results" / "models"


@pytest.mark.parametrize("name", SOME)
def test_a_network_that_others_wrote(name: str) -> None:
    record = walk(BY_NAME[name])
    assert all(record[check] for check in CHECKS), record
    assert record["at"] and 0 < record["share"]


def test_every_network_has_a_record_in_which_it_passed(tmp_path: Path) -> None:
    records = [json.loads(path.read_text()) for path in RECORDS.glob("*.json")]
    assert {record["network"] for record in records} == {case.name for case in CASES} and len(CASES) == 60
    assert all(record[check] for record in records for check in CHECKS)
    document = tmp_path / "models.md"
    document.write_text("<!-- abnn:table models -->\n<!-- /abnn:table -->\n")
    main(["--table", "--output", str(RECORDS), "--into", str(document)])
    assert "60 of 60 passed everything." in document.read_text() and table([]) == "No numbers are recorded yet.\n"
    shown = (RECORDS.parents[1] / "docs" / "models.md").read_text()
    assert document.read_text().split("-->")[1].strip() in shown  # the table in the document is that of the records
