"""The figures of the paper, from records: uncertainty from tier to tier, and over the weight of the outlier step.

The paper draws densities and sorted scores of single trainings. Here a line is the mean of the quantiles 0 %, 5 %, ...,
100 % over all seeds, which is the sorted score; the band is one standard deviation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from abnn.evaluate.records import Record
from abnn.evaluate.report.drawing import (
    PALETTE,
    PERCENT,
    TIER_LOOK,
    Drawing,
    Look,
    model_look,
    new_figure,
    set_title,
    style,
    svg_file,
)
from abnn.files import write_bytes
from research.paper.cells import Cell
from research.paper.published import TABLES
from research.paper.rows import methods
from research.paper.table import Archive, parse

POINTS = np.linspace(0, 1, 21)
SECOND_LOOK: dict[str, Look] = {
    "semi": (PALETTE["green"], (0, (1.2, 1.2))),
    "full": (PALETTE["purple"], (0, (1.2, 1.2))),
}
"""Of the second set of a tier."""
PANELS = {
    "Threshold": "threshold",
    "BBP": "bbp",
    "VBOE": "vboe (authors)",
    "SDE-Net": "sde-net",
    "OE": "oe (authors)",
    "WOODS": "woods (authors)",
    "ABNN, authors": "abnn (authors)",
    "abnn, our default": "abnn",
}


def write_figures(archive: Archive, folder: Path) -> dict[str, Drawing]:
    """Write the figures that have records, as SVG, and return them by the name of the table they belong to."""
    drawings = {}
    with style():
        makers = {"table1": lambda: tiers(archive, "mnist"), "table2": lambda: tiers(archive, "cat-dog")}
        for name, make in {**makers, "table7": lambda: alpha(archive)}.items():
            if (drawing := make()) is not None:
                drawings[name] = drawing
                write_bytes(folder / f"{drawing.name}.svg", svg_file(drawing))
    return drawings


def tiers(archive: Archive, task: str) -> Drawing | None:
    """One panel for each method: the sorted scores of every set; nothing where no method was run."""
    cells = {cell.name: cell for cell in methods(task)}
    records = {title: archive.of(cells[name]) for title, name in PANELS.items()}
    known = next((each[0] for each in records.values() if each), None)
    if known is None:
        return None
    looks = _looks(known)
    figure = new_figure(9.2, 5.0)
    medians = []
    for number, (title, runs) in enumerate(records.items()):
        axes = figure.add_subplot(2, 4, number + 1)
        set_title(axes, title)
        if runs:
            medians.append(f"{title}: {_sorted_scores(axes, runs, looks)}")
        else:
            axes.text(0.5, 0.5, "not run", ha="center", va="center", transform=axes.transAxes)
            axes.set(xticks=[], yticks=[])
        axes.set(
            xlabel="most certain inputs first" if number >= 4 else None, ylabel="score" if number % 4 == 0 else None
        )
    legend(figure, looks)
    alt = f"Sorted scores of each set, one panel for each method. Medians. {'. '.join(medians)}."
    caption = (
        f"Score of each set's inputs, sorted: mean of the quantiles over seeds, with one standard deviation. {known.sets[0].name} "
        "should be lowest, and the lines apart. Every method has a scale of its own, cut above the 95 % quantile."
    )
    return Drawing(f"tiers-{task}", alt, caption, figure)


def alpha(archive: Archive) -> Drawing | None:
    """Detection over the weight of the outlier step: in print, in the logs, and here."""
    section = TABLES["table7"].sections[0]
    cells = [row.cell for row in section.rows if row.cell is not None]
    if not any(archive.of(cell) for cell in cells):
        return None
    values = [float(row.label.rpartition(" ")[2]) for row in section.rows]
    figure = new_figure(9.2, 3.0)
    looks: dict[str, Look] = {
        "paper": (PALETTE["muted"], (0, (1.2, 1.2))),
        "authors' logs": model_look(0),
        "here": model_look(1),
    }
    told = []
    for panel, place in enumerate((1, 2, 3)):
        axes, column = figure.add_subplot(1, 3, panel + 1), section.columns[place]
        texts = {
            "paper": [row.paper.split()[place] for row in section.rows],
            "authors' logs": [row.logs.split()[place] for row in section.rows],
        }
        for name, numbers in texts.items():
            _curve(axes, values, [parse(number) for number in numbers], looks[name])
        here = [_percent(archive, cell, column.path) for cell in cells]
        _curve(axes, values, here, looks["here"])
        means = ", ".join(f"{at:g}: {each[0]:.1f}" for at, each in zip(values, here) if each is not None)
        told.append(f"{column.header} here, by α: {means}")
        set_title(axes, column.header)
        axes.set(xlabel="α", ylabel="%" if panel == 0 else None)
    legend(figure, looks)
    alt = f"MNIST against SVHN for five weights of the outlier step. {'; '.join(told)}."
    caption = (
        "MNIST against SVHN over α: mean and one standard deviation in print, in the authors' score files, and here."
    )
    return Drawing("alpha", alt, caption, figure)


def legend(figure: Figure, looks: Mapping[str, Look], columns: int | None = None) -> None:
    """Put names and their lines below a figure."""
    handles = [Line2D([], [], color=colour, linestyle=line, label=name) for name, (colour, line) in looks.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=columns or len(handles), handlelength=2.8)


def _looks(record: Record) -> dict[str, Look]:
    looks: dict[str, Look] = {}
    for each in record.sets:
        first = not any(other.tier == each.tier and other.name in looks for other in record.sets)
        looks[each.name] = TIER_LOOK[each.tier] if first else SECOND_LOOK.get(each.tier, TIER_LOOK[each.tier])
    return looks


def _sorted_scores(axes: Axes, runs: Sequence[Record], looks: dict[str, Look]) -> str:
    """Draw one panel; returns the medians in words."""
    medians, top = [], -np.inf
    for name, (colour, line) in looks.items():
        paths = [f"quantiles.{name}.{place}" for place in range(len(POINTS))]
        scores = np.array([[run.numbers[path] for path in paths] for run in runs if paths[-1] in run.numbers])
        if not len(scores):
            continue
        mean, spread = scores.mean(0), scores.std(0, ddof=1) if len(scores) > 1 else np.zeros(len(POINTS))
        axes.fill_between(POINTS, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
        axes.plot(POINTS, mean, color=colour, linestyle=line)
        medians.append(f"{name} {mean[len(POINTS) // 2]:.3g}")
        top = max(top, float(mean[-2]))
    low = axes.get_ylim()[0]
    axes.set(xlim=(0, 1), ylim=(low, max(top + 0.08 * (top - low), low + 1e-9)))
    axes.xaxis.set_major_formatter(PERCENT)
    axes.set_xticks([0, 0.5, 1])
    return ", ".join(medians)


def _percent(archive: Archive, cell: Cell, path: str) -> tuple[float, float] | None:
    summary = archive.over_seeds(cell, path)
    return None if summary is None else (100 * summary.mean, 100 * (summary.std or 0.0))


def _curve(axes: Axes, at: Sequence[float], numbers: Sequence[tuple[float, float] | None], look: Look) -> None:
    known = [(x, *number) for x, number in zip(at, numbers) if number is not None]
    if known:
        x, mean, spread = (np.array(each) for each in zip(*known))
        axes.fill_between(x, mean - spread, mean + spread, color=look[0], alpha=0.12, linewidth=0)
        axes.plot(x, mean, color=look[0], linestyle=look[1], marker="o", markersize=3.5)
