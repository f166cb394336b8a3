"""What a terminal shows: names as they are, but for characters that would steer it."""

from __future__ import annotations

import os
import re

import typer

_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def readable(name: str) -> str:
    """Return a path as text that every encoding can hold; bytes that are no UTF-8 become a replacement mark."""
    return os.fsencode(name).decode("utf-8", "replace")


def visible(text: str) -> str:
    r"""Return ``text`` in one line, with control characters, changes of direction and stray bytes as in ``\x1b``."""
    return _STEERING.sub(lambda match: match.group().encode("unicode_escape", "surrogatepass").decode(), text)


def say(text: str, warning: bool = False) -> None:
    """Print one line; a warning in yellow, on standard error."""
    typer.secho(visible(text), err=warning, fg="yellow" if warning else None)
