"""Blocks of code in documents, for those who run them: tests, and the check of a release."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(r"^( *)```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^ *```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One block: its language, the file that it belongs into (or ""), and its code."""

    language: str
    title: str
    code: str


def blocks(document: Path) -> list[Block]:
    """Return the blocks of code of a document, in order."""
    found = BLOCK.findall(document.read_text())
    return [Block(language, title, textwrap.dedent(code)) for _, language, title, code in found]


def commands(block: Block) -> list[str]:
    """Return the lines of a block for the shell, without comments."""
    lines = [re.sub(r"\s+#.*$", "", line).strip() for line in block.code.split("\n")]
    return [line for line in lines if line and not line.startswith("#")]
