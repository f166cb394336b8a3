"""Tables from run records: mean and sample standard deviation over seeds, in Markdown.

The same records give the same bytes, in whatever order they come. Tables in documents stand between two markers and are
put there by `update_between_markers`, so that no number in them was ever typed.
"""

from research.tables.columns import PRESETS, Column, column_for, columns_from, preset, with_arrow
from research.tables.markers import update_between_markers
from research.tables.rendering import MISSING, markdown_table, mean_text, render, render_paired

__all__ = [
    "MISSING",
    "PRESETS",
    "Column",
    "column_for",
    "columns_from",
    "markdown_table",
    "mean_text",
    "preset",
    "render",
    "render_paired",
    "update_between_markers",
    "with_arrow",
]
