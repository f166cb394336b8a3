"""The page itself: everything that the templates show, measured and written at once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from abnn._version import __version__
from abnn.evaluate.evaluation import TIERS, Evaluation
from abnn.evaluate.report import figures as draw
from abnn.evaluate.report.checks import check
from abnn.evaluate.report.drawing import Drawing, inline, png_file, printable, short, style, svg_file
from abnn.evaluate.report.gallery import gallery
from abnn.evaluate.report.measure import Numbers, measure, same_inputs
from abnn.evaluate.report.numbers import percent, rows_for, table_rows
from abnn.evaluate.report.texts import CALIBRATION, DETECTION, HEADLINE, MISTAKES, SELECTIVE, accuracy_of
from abnn.files import write_bytes, write_text, writing_directory
from abnn.metrics import cluster_confusion
from abnn.predict.verdicts import VERDICTS


def write_report(
    evaluations: Sequence[Evaluation],
    path: Path,
    title: str,
    intro: str = "",
    class_names: Sequence[str] | None = None,
    figures: bool = False,
    alert: str = "",
) -> Path:
    """Write one self-contained HTML page about one model, or comparing several, and return its path.

    Everything on the page is computed from ``evaluations``; the same input gives the same bytes. The last evaluation is
    the one that the page speaks for: its summary in words, its choice of pictures. Two evaluations on the same inputs
    are also compared number by number. Blank lines in ``intro`` separate paragraphs. With ``figures`` each figure is also
    written as PNG and SVG into the folder ``<page stem>_figures`` beside the page, which is replaced as a whole.
    ``alert`` stands first, in a red box: what a reader must not miss.
    """
    checked, path = check(evaluations, class_names), Path(path)
    numbers = measure(checked)
    with style():
        drawings = _drawings(checked)
        flat = [each for several in drawings.values() for each in several]
        number_of = {id(each): number for number, each in enumerate(flat, start=1)}
        page = (
            _environment()
            .get_template("page.html")
            .render(
                title=title,
                alert=alert,
                intro=[part.strip() for part in re.split(r"\n\s*\n", intro) if part.strip()],
                version=__version__,
                models=checked,
                numbers=numbers,
                tables=_tables(checked, numbers),
                figures={
                    name: [(Markup(inline(each, number_of[id(each)])), each.caption) for each in several]
                    for name, several in drawings.items()
                },
                matrices=_matrices(checked),
                pictures={
                    each.name: gallery(checked, each, same_inputs(checked), class_names)
                    for each in (checked[-1], *checked[:-1])
                },
            )
        )
        if figures:
            _write_figures(path.parent / f"{path.stem}_figures", flat)
    write_text(path, page)
    return path


def _environment() -> jinja2.Environment:
    """Everything is escaped but figures, and characters that HTML may not hold are replaced."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("abnn.evaluate.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(percent=percent, short=short, json=_as_json)
    environment.globals.update(TIERS=TIERS, VERDICTS=VERDICTS)
    return environment


def _as_json(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)


def _drawings(models: Sequence[Evaluation]) -> dict[str, list[Drawing]]:
    """All figures by section, in the order of the page."""
    limits = draw.score_limits(models)
    names = [each.name for each in models]
    outlier_sets = {
        name: [(e, s) for e in models if e.tier("id") for s in e.sets if s.name == name and s.tier != "id"]
        for name in _outlier_sets(models)
    }
    labelled = {each.name: [s for s in each.sets if s.labelled] for each in models}
    return {
        "ordered": [draw.ordered_uncertainty(each, limits[each.name]) for each in models],
        "histograms": [draw.histograms(each, limits[each.name]) for each in models],
        "verdicts": [draw.verdict_bars(each) for each in models if each.thresholds],
        "detection": [draw.roc(name, pairs, names) for name, pairs in outlier_sets.items()],
        "mistakes": _risk_figures(models),
        "calibration": [draw.reliability_diagram(e, labelled[e.name]) for e in models if labelled[e.name]],
    }


def _risk_figures(models: Sequence[Evaluation]) -> list[Drawing]:
    names = [each.name for each in models]
    labelled = [(e, e.tier("id")) for e in models if e.tier("id") and all(s.labelled for s in e.tier("id"))]
    mixed = [(e, e.sets) for e in models if len({s.tier for s in e.sets}) > 1]
    lower = "id inputs only: the lower the line, the fewer mistakes among the answers that are given."
    every = "All sets together: an answer to an input that belongs to no class counts as wrong."
    panels = (("id inputs only", labelled, lower), ("all sets together", mixed, every))
    return [draw.risk_over_coverage(title, rows, names, caption) for title, rows, caption in panels if rows]


def _tables(models: Sequence[Evaluation], numbers: Numbers) -> dict[str, Any]:
    labelled = dict.fromkeys(s.name for each in models for s in each.sets if s.labelled)
    return {
        "headline": table_rows(numbers, rows_for(HEADLINE)),
        "detection": {name: table_rows(numbers, rows_for(DETECTION, name)) for name in _outlier_sets(models)},
        "mistakes": table_rows(numbers, rows_for((*MISTAKES, *SELECTIVE))),
        "calibration": {
            name: table_rows(numbers, [(accuracy_of(name), ("accuracy", name)), *rows_for(CALIBRATION, name)])
            for name in labelled
        },
    }


def _outlier_sets(models: Sequence[Evaluation]) -> list[str]:
    return list(dict.fromkeys(s.name for e in models if e.tier("id") for s in e.sets if s.tier != "id"))


def _matrices(models: Sequence[Evaluation]) -> dict[str, list[dict[str, Any]]]:
    """Three-way confusion matrices: counts by tier and verdict, and by tier and the best three groups of all scores."""
    groups, verdicts = [], []
    for each in models:
        tiers = draw.tiers_of(each)
        if each.thresholds:
            rows = {tier: each.verdict_counts(tier) for tier in tiers}
            shares = [counts[TIERS.index(tier)] / counts.sum() for tier, counts in rows.items()]
            mean = float(np.mean(shares)) if len(tiers) == len(TIERS) else None
            verdicts.append({"caption": f"{each.name}: verdicts", "rows": rows, "balanced": mean})
        if len(tiers) == len(TIERS):
            clusters = cluster_confusion(*map(each.scores, TIERS))
            counts = dict(zip(TIERS, map(np.array, clusters.matrix)))
            mean = clusters.balanced_accuracy
            groups.append({"caption": f"{each.name}: three groups", "rows": counts, "balanced": mean})
    return {"verdicts": verdicts, "groups": groups}


def _write_figures(folder: Path, drawings: Sequence[Drawing]) -> None:
    with writing_directory(folder) as scratch:
        for number, each in enumerate(drawings, start=1):
            write_bytes(scratch / f"{number:02d}-{each.name}.svg", svg_file(each))
            write_bytes(scratch / f"{number:02d}-{each.name}.png", png_file(each))
