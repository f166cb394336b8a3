"""How figures look, and how they become SVG inside the page and files beside it: the same bytes for the same input."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from abnn.evaluate.report.markup import printable, text

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
DOTS_PER_INCH = 200
_STYLE = {
    "svg.hashsalt": "abnn",
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": PALETTE["muted"],
    "axes.labelcolor": PALETTE["ink"],
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALETTE["grid"],
    "grid.linewidth": 0.7,
    "text.color": PALETTE["ink"],
    "xtick.color": PALETTE["muted"],
    "ytick.color": PALETTE["muted"],
    "xtick.labelcolor": PALETTE["ink"],
    "ytick.labelcolor": PALETTE["ink"],
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "path.simplify": True,
}
_HIDDEN_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


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
        matplotlib.rcParams.update(_STYLE)
        # Names in scripts that DejaVu lacks: the browser has its own fonts, and files show a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def new_figure(width: float = 4.3, height: float = 3.0) -> Figure:
    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def inline(drawing: Drawing, number: int) -> str:
    """The figure as an element of the page: no size of its own, no namespaces, ids that no other figure has."""
    svg = _svg(drawing.figure, "none")
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', svg)
    assert view is not None  # matplotlib always writes one
    alt = text(drawing.alt)
    svg = re.sub(r"<svg[^>]*>", lambda _: f'<svg {view.group()} role="img" aria-label="{alt}">', svg, count=1)
    svg = re.sub(r'(\bid="|url\(#|xlink:href="#)', lambda found: f"{found.group()}f{number}-", svg)
    for name, colour in PALETTE.items():
        svg = re.sub(rf"{colour}(?=[;\"\s])", f"var(--{name})", svg)
    return f"<figure>\n{svg.strip()}\n<figcaption>{text(drawing.caption)}</figcaption>\n</figure>"


def svg_file(drawing: Drawing) -> bytes:
    return _svg(drawing.figure, "white").encode()


def png_file(drawing: Drawing) -> bytes:
    buffer = io.BytesIO()
    canvas = FigureCanvasAgg(drawing.figure)
    canvas.print_figure(
        buffer,
        format="png",
        dpi=DOTS_PER_INCH,
        facecolor="white",
        metadata={"Software": None, "Title": printable(drawing.alt)},
    )
    return buffer.getvalue()


def _svg(figure: Figure, background: str) -> str:
    buffer = io.StringIO()
    FigureCanvasSVG(figure).print_figure(buffer, format="svg", facecolor=background, metadata=_HIDDEN_METADATA)
    return buffer.getvalue()
