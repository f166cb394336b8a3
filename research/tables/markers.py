"""Tables in documents stand between two markers, so that no number in them was ever typed."""

from __future__ import annotations

import re
from pathlib import Path

from abnn.errors import FileFormatError, InputError, explain
from abnn.files import write_bytes


def update_between_markers(path: str | Path, marker: str, text: str) -> bool:
    """Put ``text`` between ``<!-- abnn:table MARKER -->`` and the next ``<!-- /abnn:table -->``; was anything changed?"""
    path = Path(path)
    start, end = f"<!-- abnn:table {marker} -->", "<!-- /abnn:table -->"
    if "abnn:table" in text:
        raise InputError(explain("text", "text with a table marker in it", "text without", "Pass the table alone."))
    try:
        content = path.read_bytes().decode()
    except FileNotFoundError:
        raise InputError(explain("path", f"{path}, which does not exist", "an existing text file")) from None
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path} is not UTF-8 text ({error}); convert it first.") from None
    number = content.count(start)
    if number != 1:
        found = ", ".join(re.findall(r"<!-- abnn:table (.+?) -->", content)) or "none"
        fix = f"Put the lines {start} and {end} where the table belongs, once. Markers in the file: {found}."
        raise InputError(explain("marker", f"{marker!r}, {number} times in {path}", "a marker that is there once", fix))
    before, after = content.split(start)
    old, closing, rest = after.partition(end)
    if not closing or "<!-- abnn:table " in old:
        fix = f"Put the line {end} after the table."
        raise InputError(explain("marker", f"{marker!r} in {path} without an end", "both markers", fix))
    newline = "\r\n" if "\r\n" in content else "\n"
    lines = newline.join(["", "", *text.strip("\n").split("\n"), "", ""])
    updated = f"{before}{start}{lines}{end}{rest}"
    if updated == content:
        return False
    write_bytes(path, updated.encode())
    return True
