"""What figures share: colours, axes and legends, and how they become SVG inside the page and files beside it.

The same input gives the same bytes.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from abnn.decisions import VERDICTS
from abnn.evaluate.evaluation import Evaluation

Limits = tuple[float, float]
Look = tuple[str, object]  # colour and line style
PALETTE = {
    "blue": "#0072b2",
    "orange": "#e69f00",
    "vermillion": "#d55e00",
    "green": "#009e73",
    "purple": "#cc79a7",
    "sky": "#56b4e9",
    "ink": "#1f2933",
    "muted": "#66717f",
    "grid": "#dde2e8",
}
"""The colours of Okabe and Ito (2008), which people with any colour vision can tell apart, and three greys.

Inside the page each becomes a CSS variable of the same name, so that dark mode can lighten it.
"""
TIER_LOOK: dict[str, Look] = {
    "id": (PALETTE["blue"], "-"),
    "semi": (PALETTE["orange"], (0, (5, 1.5))),
    "full": (PALETTE["vermillion"], (0, (5, 1.5, 1.2, 1.5))),
}
VERDICT_COLOURS = dict(zip(VERDICTS, (PALETTE["blue"], PALETTE["orange"], PALETTE["vermillion"]), strict=True))
MODEL_COLOURS = tuple(PALETTE[name] for name in ("purple", "green", "ink", "sky", "muted"))
MODEL_LINES = ((0, (5, 1.5)), "-", (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)))
PERCENT = FuncFormatter(lambda value, _: f"{round(100 * value, 6):g} %")
DOTS_PER_INCH = 200


@dataclass(frozen=True)
class Drawing:
    """One figure: ``name`` for its files, ``alt`` for those who cannot see it, ``caption`` for all."""

    name: str
    alt: str
    caption: str
    figure: Figure


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Our settings whatever the user's matplotlibrc says, for as long as figures are made and rendered."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        file = Path(__file__).with_name("figures.mplstyle")
        matplotlib.rcParams.update(matplotlib.rc_params_from_file(file, use_default_template=False))
        # Names in scripts that DejaVu lacks: the browser has its own fonts, and files show a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(width: float = 4.3, height: float = 3.0) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def model_look(number: int) -> Look:
    """Return colour and line of a model. They repeat with different periods, so that 20 models differ."""
    return MODEL_COLOURS[number % len(MODEL_COLOURS)], MODEL_LINES[number % len(MODEL_LINES)]


def set_title(axes: Axes, title: str, pad: float = 6) -> None:
    axes.set_title(short(title, 46), pad=pad)


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
    muted, values = PALETTE["muted"], () if evaluation.class_thresholds else evaluation.thresholds or ()
    for number, value in enumerate(values):
        if not limits[0] <= value <= limits[1]:
            continue
        # the two names lean away from each other, so that close thresholds do not write over one another
        if which == "x":
            axes.axvline(value, color=muted, linewidth=1, linestyle=(0, (2, 2)))
            place, transform, lean = (value, 1.01), axes.get_xaxis_transform(), (("right", "left")[number], "bottom")
        else:
            axes.axhline(value, color=muted, linewidth=1, linestyle=(0, (2, 2)))
            place, transform, lean = (1.01, value), axes.get_yaxis_transform(), ("left", ("top", "bottom")[number])
        word = VERDICTS[number + 1]
        axes.text(*place, word, color=muted, fontsize=8.5, transform=transform, ha=lean[0], va=lean[1])


def tier_legend(figure: Figure, evaluation: Evaluation, tiers: Sequence[str]) -> None:
    sets = {tier: evaluation.tier(tier) for tier in tiers}
    names = {tier: short(each[0].name, 40) if len(each) == 1 else f"{len(each)} sets" for tier, each in sets.items()}
    add_legend(figure, [(TIER_LOOK[tier], f"{tier}: {name}") for tier, name in names.items()])


def add_legend(figure: Figure, rows: Sequence[tuple[Look, str]]) -> None:
    """Below the axes, where it covers no line; the figure grows by its height."""
    handles = [Line2D([], [], color=colour, linestyle=line) for (colour, line), _ in rows]
    # Labels are set afterwards: matplotlib would drop names that start with "_".
    legend = figure.legend(handles, ["-"] * len(rows), loc="outside lower left", handlelength=2.8, labelspacing=0.3)
    for entry, (_, label) in zip(legend.get_texts(), rows, strict=True):
        entry.set_text(label)
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.1 + 0.17 * len(rows))


def printable(value: object) -> str:
    """Return a text in which the sign for an unknown character stands for those that HTML and SVG may not hold."""
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]", "\ufffd", str(value))


def short(value: object, most: int = 30) -> str:
    """Return a text in one line, cut for places with little room, such as legends."""
    line = " ".join(printable(value).split())
    return line if len(line) <= most else line[: most - 1] + "\u2026"


def inline(drawing: Drawing, number: int) -> str:
    """Return the figure as an element of the page: no size of its own, no namespaces, ids that no other figure has."""
    svg = _svg(drawing.figure, "none")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"(<metadata>.*?</metadata>|<!--.*?-->)\s*", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None  # matplotlib always writes one
    alt = escape(printable(drawing.alt))
    svg = re.sub(r"<svg[^>]*>", lambda _: f'<svg {view.group()} role="img" aria-label="{alt}">', svg, count=1)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', lambda match: f"{match.group()}f{number}-", svg)
    for name, colour in PALETTE.items():
        svg = re.sub(rf"{colour}(?=[;\"\s])", f"var(--{name})", svg)
    return svg.strip()


def svg_file(drawing: Drawing) -> bytes:
    return _svg(drawing.figure, "white").encode()


def png_file(drawing: Drawing) -> bytes:
    hidden = {"Software": None, "Title": printable(drawing.alt)}
    buffer = io.BytesIO()
    drawing.figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor="white", metadata=hidden)
    return buffer.getvalue()


def _svg(figure: Figure, background: str) -> str:
    buffer, hidden = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", facecolor=background, metadata=hidden)
    return buffer.getvalue()
