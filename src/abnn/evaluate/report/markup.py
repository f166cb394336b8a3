"""Small pieces of HTML. Every string that comes from outside passes through `text`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def printable(value: object) -> str:
    """Characters that neither HTML nor SVG may hold, replaced by the sign for an unknown character."""
    return _UNPRINTABLE.sub("\ufffd", str(value))


def text(value: object) -> str:
    """A string, safe as content and inside quoted attributes."""
    return html.escape(printable(value), quote=True)


def short(value: object, most: int = 30) -> str:
    """Cut for places with little room, such as legends."""
    line = " ".join(printable(value).split())
    return line if len(line) <= most else line[: most - 1] + "\u2026"


def slug(value: object, most: int = 40) -> str:
    """A name as part of a file name: small letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-")[:most] or "unnamed"


def section(name: str, heading: str, *parts: str) -> str:
    body = "\n".join(part for part in parts if part)
    return (
        f'<section id="{name}" aria-labelledby="{name}-h">\n<h2 id="{name}-h">{text(heading)}</h2>\n{body}\n</section>'
    )


def note(content: str) -> str:
    return f'<p class="note">{content}</p>'


def details(summary: str, *parts: str, opened: bool = False) -> str:
    body = "\n".join(part for part in parts if part)
    return f"<details{' open' if opened else ''}>\n<summary>{text(summary)}</summary>\n{body}\n</details>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> str:
    """A table that scrolls inside its own box. Cells are HTML; the first of each row is its header."""
    columns = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    lines = [f'<tr><th scope="row">{row[0]}</th>{"".join(f"<td>{cell}</td>" for cell in row[1:])}</tr>' for row in rows]
    body = "\n".join(lines)
    label = text(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f'<table class="{kind}">\n<caption>{label}</caption>\n<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n'
        "</tbody></table></div>"
    )


def items(contents: Iterable[str], kind: str = "") -> str:
    lines = "\n".join(f"<li>{content}</li>" for content in contents)
    return f'<ul class="{kind}">\n{lines}\n</ul>' if lines else ""
