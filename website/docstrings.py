"""Docstrings of this project as Markdown: aligned lists of arguments become tables, roles become links."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([\w.]+)`")
ENTRY = re.compile(r"^(\S.*?) {2,}(\S.*)$")
CODE = re.compile(r"``(.+?)``")


def to_markdown(text: str, linked: frozenset[str] = frozenset()) -> str:
    """Return a docstring as Markdown.

    A block of lines ``name  meaning``, with meanings in one column, becomes a table; other blocks that are indented stay code.
    ``linked`` are the full names that the site has a place for.
    """

    def link(match: re.Match[str]) -> str:
        name = match.group(1)
        full = name if name.startswith("abnn.") else f"abnn.{name}"
        return f"[`{name}`][{full}]" if full in linked else f"`{name}`"

    text = CODE.sub(r"`\1`", ROLE.sub(link, text))
    return "\n\n".join(_table(block) or block for block in re.split(r"\n\s*\n", text))


def _table(block: str) -> str | None:
    """Return a block of aligned entries as a table; None for any other block."""
    rows: list[list[str]] = []
    column = 0
    for line in block.split("\n"):
        entry = ENTRY.match(line)
        if entry and (not rows or entry.start(2) == column):
            column = entry.start(2)
            rows.append([entry.group(1), entry.group(2)])
        elif rows and line.startswith(" " * column) and line.strip():
            rows[-1][1] += f" {line.strip()}"
        else:
            return None
    if not rows:
        return None
    cells = [f"| {_names(name)} | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in rows]
    return "\n".join(["| | |", "|---|---|", *cells])


def _names(names: str) -> str:
    return ", ".join(name if "`" in name else f"`{name}`" for name in names.split(", "))


class Docstrings(griffe.Extension):
    """Rewrites every docstring while griffe collects the package."""

    def __init__(self) -> None:
        import abnn

        self.linked = frozenset(f"abnn.{name}" for name in dir(abnn))

    def on_object(self, *, obj: griffe.Object, **more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value, self.linked)
