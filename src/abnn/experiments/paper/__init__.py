"""The paper's tables, one file each: which runs they need, what the paper and the authors' logs say, and what we found."""

from abnn.experiments.paper.cells import Cell, Runner
from abnn.experiments.paper.joint import TABLE as JOINT
from abnn.experiments.paper.readable import TABLE as READABLE
from abnn.experiments.paper.table import Table
from abnn.experiments.paper.table1 import TABLE as TABLE_1
from abnn.experiments.paper.table2 import TABLE as TABLE_2
from abnn.experiments.paper.table3 import TABLE as TABLE_3
from abnn.experiments.paper.table4 import TABLE as TABLE_4
from abnn.experiments.paper.table5 import TABLE as TABLE_5
from abnn.experiments.paper.table6 import TABLE as TABLE_6
from abnn.experiments.paper.table7 import TABLE as TABLE_7

TABLES: dict[str, Table] = {
    f"table{number}": table
    for number, table in enumerate((TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7), 1)
}
MORE: dict[str, Table] = {"joint": JOINT, "readable": READABLE}
"""What the paper does not have."""

__all__ = ["MORE", "TABLES", "Cell", "Runner", "Table"]
