"""The page itself: sections, style, and writing it all at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from abnn import _version
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report import sections
from abnn.evaluate.report.checks import check
from abnn.evaluate.report.drawing import Drawing, inline, png_file, style, svg_file
from abnn.evaluate.report.gallery import galleries
from abnn.evaluate.report.markup import note, section, text
from abnn.evaluate.report.measure import measure, same_inputs
from abnn.files import write_bytes, write_text, writing_directory

CONTENTS = (
    ("summary", "In short"),
    ("uncertainty", "Uncertainty by tier"),
    ("triage", "Accept, notice, reject"),
    ("detection", "Finding outliers"),
    ("mistakes", "Finding mistakes"),
    ("calibration", "Honest probabilities"),
    ("gallery", "Pictures"),
    ("provenance", "Models and data"),
)


def write_report(
    evaluations: Sequence[Evaluation],
    path: Path,
    title: str,
    intro: str = "",
    class_names: Sequence[str] | None = None,
    figures: bool = False,
) -> Path:
    """Write one self-contained HTML page about one model, or comparing several, and return its path.

    Everything on the page is computed from ``evaluations``; the same input gives the same bytes. The last evaluation is
    the one that the page speaks for: its summary in words, its choice of pictures. Two evaluations on the same inputs
    are also compared number by number. Blank lines in ``intro`` separate paragraphs. With ``figures`` each figure is also
    written as PNG and SVG into the folder ``<page stem>_figures`` beside the page, which is replaced as a whole.
    """
    checked = check(evaluations, class_names)
    path = Path(path)
    drawings: list[Drawing] = []

    def draw(several: Sequence[Drawing]) -> str:
        first = len(drawings) + 1
        drawings.extend(several)
        shown = "\n".join(inline(each, number) for number, each in enumerate(several, start=first))
        return f'<div class="panels">\n{shown}\n</div>'

    with style():
        page = _page(checked, title, intro, class_names, draw)
        if figures:
            _write_figures(path.parent / f"{path.stem}_figures", drawings)
    write_text(path, page)
    return path


def _page(
    evaluations: Sequence[Evaluation],
    title: str,
    intro: str,
    class_names: Sequence[str] | None,
    draw: sections.Draw,
) -> str:
    numbers = measure(evaluations)
    pictures = galleries(evaluations, same_inputs(evaluations), class_names)
    body = [
        sections.summary(evaluations, numbers),
        sections.uncertainty(evaluations, draw),
        sections.triage(evaluations, draw),
        sections.detection(evaluations, numbers, draw),
        sections.errors(evaluations, numbers, draw),
        sections.calibration(evaluations, numbers, draw),
        section("gallery", "Pictures", pictures),
        sections.provenance(evaluations),
    ]
    links = "\n".join(f'<a href="#{name}">{heading}</a>' for name, heading in CONTENTS)
    paragraphs = [f'<p class="intro">{text(part.strip())}</p>' for part in re.split(r"\n\s*\n", intro) if part.strip()]
    css = files("abnn.evaluate.report").joinpath("page.css").read_text(encoding="utf-8")
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{text(title)}</title>",
            f"<style>\n{css}</style>",
            "</head>",
            "<body>",
            f"<header>\n<h1>{text(title)}</h1>",
            *paragraphs,
            f'<nav aria-label="Contents">\n{links}\n</nav>\n</header>',
            "<main>",
            *body,
            "</main>",
            f"<footer>{note(f'Written by abnn {text(_version.__version__)} from the saved scores alone.')}</footer>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _write_figures(folder: Path, drawings: Sequence[Drawing]) -> None:
    with writing_directory(folder) as scratch:
        for number, each in enumerate(drawings, start=1):
            write_bytes(scratch / f"{number:02d}-{each.name}.svg", svg_file(each))
            write_bytes(scratch / f"{number:02d}-{each.name}.png", png_file(each))
