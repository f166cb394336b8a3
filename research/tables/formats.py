"""A table as text: Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence

from abnn.errors import unknown
from research.tables.cells import Cell

Heads = Sequence[tuple[str, list[str]]]
Body = Sequence[Sequence[Cell]]

_LATEX = {
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "±": r"$\pm$",
    "–": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": "$-$",
}


def writer_for(format: str) -> Callable[[Heads, Body], str]:
    """A function of heads and body: each head for readers, with its columns in the CSV file."""
    writers = {"markdown": _markdown, "latex": _latex, "csv": _csv}
    if format not in writers:
        raise unknown("format", format, writers)
    return writers[format]


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in Markdown; all but the first ``left`` columns are numbers and lie to the right."""

    def line(texts: Sequence[str]) -> str:
        return f"| {' | '.join(' '.join(text.split()).replace('|', chr(92) + '|') for text in texts)} |"

    rule = f"|{'|'.join(['---'] * left + ['---:'] * (len(heads) - left))}|"
    return "\n".join([line(heads), rule, *map(line, rows)]) + "\n"


def _markdown(heads: Heads, body: Body) -> str:
    rows = [[f"**{cell.text}**" if cell.best else cell.text for cell in row] for row in body]
    return markdown_table([head for head, _ in heads], rows)


def _latex(heads: Heads, body: Body) -> str:
    def line(texts: Sequence[str]) -> str:
        return rf"{' & '.join(texts)} \\"

    rows = [[rf"\textbf{{{_escape(cell.text)}}}" if cell.best else _escape(cell.text) for cell in row] for row in body]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            r"\toprule",
            line([_escape(head) for head, _ in heads]),
            r"\midrule",
            *map(line, rows),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _csv(heads: Heads, body: Body) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([name for _, names in heads for name in names])
    writer.writerows([part for cell in row for part in cell.raw] for row in body)
    return buffer.getvalue()


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))
