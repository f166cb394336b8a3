"""The page of the measurements beyond the paper: tables and figures from the records, between its markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from abnn.evaluate.report.drawing import Drawing
from research.paper.beyond.comparisons import (
    COMPARISONS,
    OURS,
    PLAIN,
    Comparison,
    counted,
    counted_columns,
    counted_texts,
    heads,
)
from research.paper.beyond.figures import write_figures
from research.paper.beyond.parts import PARTS
from research.paper.beyond.run import TASKS, Measured
from research.tables import markdown_table, update_between_markers

PAGE, FIGURES = "beyond.md", "figures"
TITLES = {"mnist": "MNIST", "svhn": "SVHN"}


def write_beyond(results: str | Path, docs: str | Path) -> list[Path]:
    """Put what ``results`` has into ``docs/beyond.md`` and the figures beside it; which documents changed?"""
    page, measured = Path(docs) / PAGE, Measured(results)
    drawings = write_figures(measured, page.parent / FIGURES)
    texts = {"beyond-balance": balance(measured)}
    texts |= {f"beyond-{part}": table(measured, part) + _shown(drawings.get(part, ())) for part in PARTS}
    changed = [update_between_markers(page, marker, text) for marker, text in texts.items()]
    return [page] if any(changed) else []


def table(measured: Measured, part: str) -> str:
    """One table for each task, or "not run"."""
    return "\n".join(_table(measured, part, task) for task in TASKS)


def balance(measured: Measured) -> str:
    """How often which of the two is better, and every number in which the plain network is."""
    counts, losses = [], []
    for task in TASKS:
        for part, compare in COMPARISONS.items():
            if not measured.of(task, part):
                counts.append([TITLES[task], part, *["not run"] * 3])
                continue
            comparisons = compare(measured, task)
            winners = [each.winner for each in comparisons]
            counts.append([TITLES[task], part, *(str(winners.count(who)) for who in ("ours", "equal", "plain"))])
            lost = [each for each in comparisons if each.winner == "plain"]
            losses += [[TITLES[task], each.part, each.row, each.column, *each.texts] for each in lost]
    text = markdown_table(["", "", "ours better", "equal", "plain better"], counts, left=2)
    if losses:
        text += "\nWhere the plain network is better:\n\n"
        text += markdown_table(["", "", "", "", "plain", "ours"], losses, left=4)
    return text


def _table(measured: Measured, part: str, task: str) -> str:
    entries = measured.of(task, part)
    if not entries:
        return f"**{TITLES[task]}**: not run.\n"
    seeds = f"{len(entries)} seed{'s' if len(entries) > 1 else ''}"
    title = f"**{TITLES[task]}**, {seeds}, {measured.inputs(task, part)} inputs\n\n"
    return title + (
        _counted(measured, task, part) if part in ("draws", "views") else _pairs(COMPARISONS[part](measured, task))
    )


def _pairs(comparisons: Sequence[Comparison]) -> str:
    """Rows and columns of "plain → ours"."""
    columns = {each.column: "↓" if each.better == "lower" else "↑" for each in comparisons}
    rows: dict[str, list[str]] = {}
    for each in comparisons:
        rows.setdefault(each.row, [each.row]).append(each.cell)
    return markdown_table(["", *(f"{name} {arrow}" for name, arrow in columns.items())], list(rows.values()))


def _counted(measured: Measured, task: str, part: str) -> str:
    """One row for each number of draws or views; a network without draws has one of these."""
    rows = []
    for model, title in ((PLAIN, "plain network"), (OURS, "ours")):
        counts = list(counted_texts(measured, task, part, model))
        for count, texts in counts:
            name = f"{title}, {counted(count, part)}" if len(counts) > 1 else title
            rows.append([name, *texts])
    return markdown_table(["", *heads(counted_columns(measured, task, part))], rows)


def _shown(drawings: Sequence[Drawing]) -> str:
    return "".join(f"\n![{each.alt}]({FIGURES}/{each.name}.svg)\n\n{each.caption}\n" for each in drawings)
