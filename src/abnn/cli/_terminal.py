"""What a terminal shows: names as they are, but for characters that would steer it."""

from __future__ import annotations

import typer


def visible(text: str) -> str:
    r"""Return ``text`` in one line; what is no printable character (control, direction, stray bytes) as in ``\x1b``."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def say(text: str, warning: bool = False) -> None:
    """Print one line; a warning in yellow, on standard error."""
    typer.secho(visible(text), err=warning, fg="yellow" if warning else None)
