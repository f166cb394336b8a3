"""Tables from run records: mean and sample standard deviation over seeds, as Markdown, LaTeX or CSV.

The same records give the same bytes, in whatever order they come. Tables in documents stand between two markers and are
put there by `update_between_markers`, so that no number in them was ever typed.
"""

from research.tables.cells import MISSING, mean_text
from research.tables.columns import Column, column_for, with_arrow
from research.tables.formats import markdown_table
from research.tables.groups import check_paths
from research.tables.markers import update_between_markers
from research.tables.presets import PRESETS, columns_from, preset
from research.tables.rendering import paired, render, render_paired

__all__ = [
    "MISSING",
    "PRESETS",
    "Column",
    "check_paths",
    "column_for",
    "columns_from",
    "markdown_table",
    "mean_text",
    "paired",
    "preset",
    "render",
    "render_paired",
    "update_between_markers",
    "with_arrow",
]
