"""What a check says, and how it is written into a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from research.tables import MISSING, markdown_table


@dataclass(frozen=True)
class Check:
    """One statement and what became of it.

    held     whether the statement held, by setting
    figure   the numbers that decide, as a reader wants them
    numbers  the same and more, for computers
    """

    statement: str
    held: dict[str, bool]
    figure: str
    numbers: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; settings as pairs, since files are written with sorted keys."""
        return {**asdict(self), "held": [list(pair) for pair in self.held.items()]}


def checks_table(checks: Mapping[str, Mapping[str, Any]], order: Iterable[str]) -> str:
    """One line for each check; where a statement held and where it failed was decided by its numbers."""

    def where(check: Mapping[str, Any], wanted: bool) -> str:
        return "; ".join(setting for setting, held in check["held"] if held is wanted) or MISSING

    rows = [
        [check["statement"], where(check, True), where(check, False), check["figure"]]
        for check in (checks[name] for name in order)
    ]
    return markdown_table(["statement", "holds", "fails", "figure"], rows, left=4)
