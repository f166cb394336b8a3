"""The page of the reproduction: every table and figure, from the records, between the markers of a document.

The same records give the same bytes. What has no record yet is "not run", so the page is whole at every stage.
"""

from __future__ import annotations

from pathlib import Path

from abnn.errors import InputError, explain
from abnn.evaluate.report.drawing import Drawing
from research.paper import TABLES
from research.paper.beyond import PAGE as BEYOND
from research.paper.beyond import write_beyond
from research.paper.figures import write_figures
from research.paper.standing import rank_table, summary_table
from research.paper.table import ABOVE, BELOW, Archive
from research.tables import markdown_table, update_between_markers

PAGE, FIGURES = "reproduction.md", "figures"


def write_page(results: str | Path, docs: str | Path = "docs") -> list[Path]:
    """Put the tables of ``results`` into ``docs/reproduction.md`` and the figures beside it; which documents changed?"""
    folder = Path(docs)
    if not (folder / PAGE).exists():
        fix = "Run this in a checkout of the project, or pass its folder of documents."
        raise InputError(explain("docs", f"{folder}, without {PAGE}", "a folder with that page", fix))
    archive = Archive(results)
    drawings = write_figures(archive, folder / FIGURES)
    texts = {
        "reproduction": summary_table(archive),
        "reproduction-ranks": rank_table(archive),
        "reproduction-agreement": agreement(archive),
    }
    for name, table in TABLES.items():
        texts[name] = table.markdown(archive) + (
            _figure(drawings.get(name)) if name in ("table1", "table2", "table7") else ""
        )
    documents = [folder / PAGE for marker, text in texts.items() if update_between_markers(folder / PAGE, marker, text)]
    if (folder / BEYOND).exists():
        documents += write_beyond(results, folder)
    return list(dict.fromkeys(documents))


def agreement(archive: Archive) -> str:
    """How many values of each table were reproduced."""
    kinds = {"within": "reproduced", ABOVE: f"{ABOVE} higher here", BELOW: f"{BELOW} lower here", "not run": "not run"}
    counts = {table.title: table.tally(archive) for table in TABLES.values()}
    rows = [[title, str(count.total()), *(str(count[kind]) for kind in kinds)] for title, count in counts.items()]
    return markdown_table(["", "values with a reference", *kinds.values()], rows)


def _figure(drawing: Drawing | None) -> str:
    if drawing is None:
        return "\nFigure: not run.\n"
    return f"\n![{drawing.alt}]({FIGURES}/{drawing.name}.svg)\n\n{drawing.caption}\n"
