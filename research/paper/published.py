"""Reads the tables of ``published.toml``: which runs they need, and what the paper and the authors' logs say."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from research.paper import columns
from research.paper.rows import cells_by_name, posthoc
from research.paper.table import Row, Section, Table
from research.tables import Column

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_tables() -> dict[str, Table]:
    """Return all tables of the file by name."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {name: Table(entry["text"], _sections(entry["sections"])) for name, entry in tomllib.loads(text).items()}


def _sections(entries: Sequence[dict[str, Any]]) -> tuple[Section, ...]:
    sections: list[Section] = []
    for entry in entries:
        if "rows_of" in entry:
            above = sections[entry["rows_of"]].rows
            rows = tuple(Row(row.label, row.cell) for row in above if row.cell is not None)
        else:
            rows = _rows(entry)
        sections.append(Section(entry["title"], _columns(entry["columns"]), rows, entry.get("about", "")))
    return tuple(sections)


def _columns(calls: Sequence[Sequence[str]]) -> tuple[Column, ...]:
    results = [getattr(columns, name)(*arguments) for name, *arguments in calls]
    return tuple(column for each in results for column in ([each] if isinstance(each, Column) else each))


def _rows(entry: dict[str, Any]) -> tuple[Row, ...]:
    cells = cells_by_name(entry["task"])
    rows = [Row(label, cells[name] if name else None, *numbers) for label, name, *numbers in entry["rows"]]
    if entry.get("posthoc"):
        rows += [Row(cell.name, cell) for cell in posthoc(entry["task"])]
    return tuple(rows)


TABLES = read_tables()
"""Tables 1 to 7 of the paper, by "table1" to "table7"."""
