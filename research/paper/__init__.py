"""The paper's tables: which runs they need, what the paper and the authors' logs say, and what we found."""

from research.paper.cells import Cell, Runner
from research.paper.published import TABLES
from research.paper.table import Table

__all__ = ["TABLES", "Cell", "Runner", "Table"]
