"""What the paper leaves open, measured on the networks of its tables: severity curves, far-away inputs, the number of draws,
and corrupted in-distribution data."""

from abnn.experiments.paper.beyond.measured import Measured
from abnn.experiments.paper.beyond.page import PAGE, table, write_beyond
from abnn.experiments.paper.beyond.parts import PARTS
from abnn.experiments.paper.beyond.run import TASKS, Beyond

__all__ = ["PAGE", "PARTS", "TASKS", "Beyond", "Measured", "table", "write_beyond"]
