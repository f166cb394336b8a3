"""The paper's tables, one file each: which runs they need, what the paper and the authors' logs say, and what we found."""

from research.paper.cells import Cell, Runner
from research.paper.joint import TABLE as JOINT
from research.paper.readable import TABLE as READABLE
from research.paper.table import Table
from research.paper.table1 import TABLE as TABLE_1
from research.paper.table2 import TABLE as TABLE_2
from research.paper.table3 import TABLE as TABLE_3
from research.paper.table4 import TABLE as TABLE_4
from research.paper.table5 import TABLE as TABLE_5
from research.paper.table6 import TABLE as TABLE_6
from research.paper.table7 import TABLE as TABLE_7

TABLES: dict[str, Table] = {
    f"table{number}": table
    for number, table in enumerate((TABLE_1, TABLE_2, TABLE_3, TABLE_4, TABLE_5, TABLE_6, TABLE_7), 1)
}
MORE: dict[str, Table] = {"joint": JOINT, "readable": READABLE}
"""What the paper does not have."""

__all__ = ["MORE", "TABLES", "Cell", "Runner", "Table"]
