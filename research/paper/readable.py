"""Targets by what can still be read; not in the paper.

The default asks of an input into which scenery is blended by a share s that its prediction fade by s. On MNIST most of them are
read up to high shares: here it fades by the square of s. Everything else is as in the default.
"""

from __future__ import annotations

from research.paper.joint import sections
from research.paper.rows import ours, readable, threshold
from research.paper.table import Row, Table


def _rows(task: str) -> tuple[Row, ...]:
    return (
        Row("plain network", threshold(task)),
        Row("by the share (the default)", ours(task)),
        Row("by its square", readable(task)),
    )


TABLE = Table(__doc__ or "", sections(_rows))
