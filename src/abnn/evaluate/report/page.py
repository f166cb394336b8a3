"""The page itself: everything that the templates show, measured and written at once."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment
from markupsafe import Markup

from abnn._version import __version__
from abnn.decisions import VERDICTS
from abnn.errors import InputError, explain
from abnn.evaluate.evaluation import TIERS, Evaluation, check_distinct
from abnn.evaluate.report import figures as draw
from abnn.evaluate.report.drawing import Drawing, inline, png_file, printable, short, style, svg_file
from abnn.evaluate.report.gallery import gallery
from abnn.evaluate.report.measure import TABLES, as_text, judge, measure, percent, same_inputs
from abnn.files import templates, write_bytes, write_text, writing_directory
from abnn.metrics import cluster_confusion


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
    models, path = _check(evaluations, class_names), Path(path)
    numbers = measure(models)
    aligned, template = same_inputs(models), _environment().get_template("page.html")
    whole = [each for each in models if len(each.tiers) == len(TIERS)]
    with style():
        drawings = _drawings(models)
        flat = list(enumerate((each for some in drawings.values() for each in some), start=1))
        svg_of = {id(each): Markup(inline(each, number)) for number, each in flat}
        page = template.render(
            title=title,
            alerts=[alert] if alert else _losses(models, numbers),
            intro=[part.strip() for part in re.split(r"\n\s*\n", intro) if part.strip()],
            version=__version__,
            models=models,
            class_name=lambda number: class_names[number] if class_names else f"class {number}",
            numbers=numbers,
            outlier_sets=_outlier_sets(models),
            labelled_sets=dict.fromkeys(s.name for each in models for s in each.sets if s.labelled),
            figures={kind: [(svg_of[id(each)], each.caption) for each in some] for kind, some in drawings.items()},
            verdicts={e.name: {tier: e.verdict_counts(tier) for tier in e.tiers} for e in models if e.thresholds},
            groups={e.name: dict(zip(TIERS, np.array(cluster_confusion(*map(e.scores, TIERS)).matrix))) for e in whole},
            pictures={each.name: gallery(models, each, aligned) for each in (models[-1], *models[:-1])},
        )
        if figures:
            with writing_directory(path.parent / f"{path.stem}_figures") as scratch:
                for number, each in flat:
                    write_bytes(scratch / f"{number:02d}-{each.name}.svg", svg_file(each))
                    write_bytes(scratch / f"{number:02d}-{each.name}.png", png_file(each))
    write_text(path, page)
    return path


def _check(evaluations: Sequence[Evaluation], class_names: Sequence[str] | None) -> tuple[Evaluation, ...]:
    """Return the evaluations, or refuse what cannot be reported before anything is computed or written."""
    if not evaluations:
        raise InputError(explain("evaluations", "none", "one Evaluation, or several to compare"))
    check_distinct([each.name for each in evaluations], "evaluations", "models")
    for each in evaluations:
        for result in each.sets:
            where = f"set {result.name!r} of {each.name!r}"
            if len(result) == 0:
                fix = f"All may have been skipped ({len(result.skipped)}); leave the set out or repair its files."
                raise InputError(explain(where, "no inputs", "at least one input", fix))
            if bad := int(np.count_nonzero(~np.isfinite(result.scores[each.score]))):
                fix = "Find out why the model gave NaN or infinity there; leaving such inputs out would flatter it."
                fault = f"{bad} of {len(result)} values not finite"
                raise InputError(explain(f"score {each.score!r} of {where}", fault, "finite numbers", fix))
            if class_names is not None and len(class_names) != result.probs.shape[1]:
                accepted = f"{result.probs.shape[1]} names, one for each class of {where}"
                raise InputError(explain("class_names", f"{len(class_names)} names", accepted))
    return tuple(evaluations)


def _environment() -> Environment:
    """Return what fills in the template: all but figures is escaped; characters that HTML may not hold are replaced."""
    environment = templates(
        Path(__file__).parent, finalize=lambda value: value if isinstance(value, Markup) else printable(value)
    )
    as_json = partial(json.dumps, indent=2, sort_keys=True, ensure_ascii=False)
    environment.filters.update(percent=percent, short=short, as_text=as_text, judge=judge, json=as_json)
    environment.globals.update(TIERS=TIERS, VERDICTS=VERDICTS, TABLES=TABLES)
    return environment


def _drawings(models: Sequence[Evaluation]) -> dict[str, list[Drawing]]:
    """Return all figures by section, in the order of the page."""
    alike, names = draw.on_one_scale(models), [each.name for each in models]
    limits = draw.score_limits(alike)
    pairs = {
        name: [(e, s) for e in models if e.tier("id") for s in e.sets if s.name == name and s.tier != "id"]
        for name in _outlier_sets(models)
    }
    labelled = {each.name: [s for s in each.sets if s.labelled] for each in models}
    known = [(e, e.tier("id")) for e in models if e.tier("id") and all(s.labelled for s in e.tier("id"))]
    mixed = [(e, e.sets) for e in models if len(e.tiers) > 1]
    lower = "id inputs only: the lower the line, the fewer mistakes among the answers that are given."
    every = "All sets together: an answer to an input that belongs to no class counts as wrong."
    panels = (("id inputs only", known, lower), ("all sets together", mixed, every))
    return {
        "ordered": [draw.ordered_uncertainty(each, limits[each.name]) for each in alike],
        "histograms": draw.share_height([draw.histograms(each, limits[each.name]) for each in alike]),
        "verdicts": [draw.verdict_bars(each) for each in models if each.thresholds],
        "detection": [draw.roc(name, rows, names) for name, rows in pairs.items()],
        "mistakes": [draw.risk_over_coverage(title, rows, names, about) for title, rows, about in panels if rows],
        "calibration": [draw.reliability_diagram(e, labelled[e.name]) for e in models if labelled[e.name]],
    }


def _losses(models: Sequence[Evaluation], numbers: Any) -> list[str]:
    """Return what to say first where the second model is right clearly less often than the first."""
    lines = []
    for row in numbers.rows(["accuracy_id", "accuracy_semi"]):
        if row["difference"] is not None and judge(row["difference"], row["metric"]) == "worse":
            points, kind = f"{-100 * row['difference'].estimate:.1f}", row["metric"].title.rpartition(" ")[2]
            sets = ", ".join(each.name for each in models[1].sets if each.tier == kind)
            lines.append(
                f"Accuracy on {sets} is {points} points lower: {models[1].name}, compared with {models[0].name}."
            )
    return lines


def _outlier_sets(models: Sequence[Evaluation]) -> list[str]:
    return list(dict.fromkeys(s.name for e in models if e.tier("id") for s in e.sets if s.tier != "id"))
