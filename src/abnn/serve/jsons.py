"""JSON without NaN, both ways, and without deep nesting on the way in."""

from __future__ import annotations

import json
from typing import Any


def dumps(content: object) -> bytes:
    return json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def loads(content: bytes, nesting: int) -> Any:
    """A JSON value with at most ``nesting`` objects and arrays in all; a ValueError says what is wrong with it.

    Brackets are counted before parsing, so nothing is unpacked that is deeper or has more parts than any valid request.
    """
    if content.count(b"{") + content.count(b"[") > nesting:
        raise ValueError(f"more than {nesting} nested or listed objects")
    try:
        return json.loads(content.decode(), parse_constant=_refuse)
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
