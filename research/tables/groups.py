"""Which records make up which row."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.records import Record
from research.tables.columns import Column


def group_records(
    records: Sequence[Record], columns: Sequence[Column], by: str, rows: Sequence[str] | None
) -> dict[str, list[Record]]:
    """Records by label and, within a label, by seed, after checking that columns and rows exist and seeds are unique."""
    if not records:
        raise InputError(explain("records", "none", "at least one record", "Check the folder and the filters."))
    check_paths(records, [column.path for column in columns])
    labelled: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda each: (_numbers_first(_value_of(each, by)), each.seed, str(each.path))):
        labelled.setdefault(str(_value_of(record, by)), []).append(record)
    for label, group in labelled.items():
        for one, other in itertools.pairwise(group):
            if one.seed == other.seed:
                given = f"{one.path} and {other.path}, both {label!r} with seed {one.seed}"
                fix = "Filter by experiment or name, or group by what differs between them."
                raise InputError(explain("records", given, "one record for each row and seed", fix))
    for row in rows or ():
        if row not in labelled:
            raise unknown("rows", row, labelled)
    return labelled if rows is None else {row: labelled[row] for row in rows}


def _value_of(record: Record, by: str) -> Any:
    first, *keys = by.split(".")
    known = [field.name for field in fields(Record) if field.type in ("str", "int")]
    if first not in ([*known, "config"] if keys else known):
        raise unknown("by", by, [*known, "config.KEY"])
    value = getattr(record, first)
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            raise InputError(explain("by", repr(by), f"a key of the config of {record.path}"))
        value = value[key]
    return value if isinstance(value, str | int | float) else str(value)


def _numbers_first(value: Any) -> tuple[int, float, str]:
    return (1, 0.0, value) if isinstance(value, str) else (0, float(value), "")


def check_paths(records: Sequence[Record], paths: Sequence[str]) -> None:
    """A metric that no record has is a typing error, and would otherwise look like missing data."""
    known = dict.fromkeys(path for record in records for path in record.numbers)
    for path in paths:
        if path not in known:
            close = difflib.get_close_matches(path, known, n=1)
            hint = (
                f"Did you mean {close[0]!r}?" if close else "`python -m research results show RECORD --all` lists them."
            )
            raise InputError(explain("path", f"{path!r}, which is in no record", "the path of a metric", hint))
