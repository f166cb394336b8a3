"""What the paper leaves open, measured on networks as in its tables: severity curves, far-away inputs, the numbers of draws and
views, and corrupted in-distribution data."""

from research.paper.beyond.page import PAGE, table, write_beyond
from research.paper.beyond.parts import PARTS
from research.paper.beyond.run import TASKS, Beyond, Measured

__all__ = ["PAGE", "PARTS", "TASKS", "Beyond", "Measured", "table", "write_beyond"]
