"""What several figures share: colours, line styles, axes, thresholds and legends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report.drawing import PALETTE
from abnn.evaluate.report.markup import short
from abnn.evaluate.report.texts import VERDICTS

Limits = tuple[float, float]
Look = tuple[str, object]
"""Colour and line style."""
TIER_LOOK: dict[str, Look] = {
    "id": (PALETTE["blue"], "-"),
    "semi": (PALETTE["orange"], (0, (5, 1.5))),
    "full": (PALETTE["vermillion"], (0, (5, 1.5, 1.2, 1.5))),
}
VERDICT_COLOURS = dict(zip(VERDICTS, (PALETTE["blue"], PALETTE["orange"], PALETTE["vermillion"]), strict=True))
MODEL_COLOURS = tuple(PALETTE[name] for name in ("purple", "green", "ink", "sky", "muted"))
MODEL_LINES = ((0, (5, 1.5)), "-", (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
PERCENT = FuncFormatter(lambda value, _: f"{round(100 * value, 6):g} %")


def model_look(number: int) -> Look:
    """Colours and lines repeat with different periods, so that 20 models differ."""
    return MODEL_COLOURS[number % len(MODEL_COLOURS)], MODEL_LINES[number % len(MODEL_LINES)]


def set_title(axes: Axes, title: str, pad: float = 6) -> None:
    axes.set_title(short(title, 46), parse_math=False, pad=pad)


def name_score_axis(axes: Axes, evaluation: Evaluation, which: str) -> None:
    label = f"uncertainty score ({short(evaluation.score, 24)})"
    (axes.set_xlabel if which == "x" else axes.set_ylabel)(label, parse_math=False)


def percent_axes(axes: Axes) -> None:
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PERCENT)
        axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))


def draw_diagonal(axes: Axes) -> None:
    axes.plot([0, 1], [0, 1], color=PALETTE["muted"], linewidth=1, linestyle=(0, (1, 2)))


def draw_thresholds(axes: Axes, evaluation: Evaluation, which: str, limits: Limits) -> None:
    """Lines where notice and reject begin, named outside the axes; a line beyond the limits is left out.

    Thresholds that differ by class have no line: the predicted class, which the figure does not show, decides there.
    """
    muted = PALETTE["muted"]
    for number, value in enumerate(() if evaluation.class_thresholds else evaluation.thresholds or ()):
        if not limits[0] <= value <= limits[1]:
            continue
        look: dict[str, Any] = {"color": muted, "linewidth": 1, "linestyle": (0, (2, 2))}
        # the two names lean away from each other, so that close thresholds do not write over one another
        if which == "x":
            axes.axvline(value, **look)
            place, transform = (value, 1.01), axes.get_xaxis_transform()
            align: dict[str, Any] = {"ha": ("right", "left")[number], "va": "bottom"}
        else:
            axes.axhline(value, **look)
            place, transform = (1.01, value), axes.get_yaxis_transform()
            align = {"ha": "left", "va": ("top", "bottom")[number]}
        axes.text(*place, VERDICTS[number + 1], color=muted, fontsize=8.5, transform=transform, **align)


def tier_legend(figure: Figure, evaluation: Evaluation, tiers: Sequence[str]) -> None:
    rows = []
    for tier in tiers:
        sets = evaluation.tier(tier)
        named = short(sets[0].name, 40) if len(sets) == 1 else f"{len(sets)} sets"
        rows.append((TIER_LOOK[tier], f"{tier}: {named}"))
    add_legend(figure, rows)


def add_legend(figure: Figure, rows: Sequence[tuple[Look, str]]) -> None:
    """Below the axes, where it covers no line; the figure grows by its height."""
    handles = [Line2D([], [], color=colour, linestyle=line) for (colour, line), _ in rows]
    # Labels are set afterwards: matplotlib would drop names that start with "_" and read "$" as mathematics.
    legend = figure.legend(handles, ["-"] * len(rows), loc="outside lower left", handlelength=2.8, labelspacing=0.3)
    for entry, (_, label) in zip(legend.get_texts(), rows, strict=True):
        entry.set_parse_math(False)
        entry.set_text(label)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.1 + 0.17 * len(rows))
