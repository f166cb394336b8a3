"""Where our default stands: beside the best of all others in each discipline, and over all disciplines together.

One score is asked to do everything: tell outliers from data, wrong predictions from right ones, and semi from full
sets, while the network still reads the semi sets. Many scores are best at one of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from abnn.metrics import SeedSummary
from research.paper.cells import Cell
from research.paper.columns import accuracy, detection, misclassification
from research.paper.rows import authors, methods, ours, posthoc, threshold
from research.paper.table import Archive
from research.tables import MISSING, Column, markdown_table, mean_text

TASKS = ("mnist", "svhn")
DETECTION, ERRORS, ORDER, READING = "detection", "misclassification", "order of tiers", "accuracy on semi"
GROUPS = (DETECTION, ERRORS, ORDER, READING)


@dataclass(frozen=True)
class Measure:
    """One number of a run on one task; larger is better. ``group`` is the discipline it counts for."""

    label: str
    task: str
    column: Column
    group: str = ""


def _detection(task: str, known: str, other: str) -> list[Measure]:
    tnr, auroc, *_ = detection(other)
    return [
        Measure(f"{known} against {other}: TNR at TPR 95 %", task, tnr, DETECTION),
        Measure(f"{known} against {other}: AUROC", task, auroc, DETECTION),
    ]


def _order(semi: str) -> Measure:
    path = f"pairs.{semi} < CIFAR-10.auroc_semi_below_full"
    return Measure(f"{semi} less uncertain than CIFAR-10: AUROC", "mnist", Column("AUROC", path), ORDER)


MEASURES = (
    Measure("MNIST: accuracy", "mnist", accuracy("MNIST")),
    Measure("SVHN: accuracy", "svhn", accuracy("SVHN")),
    *_detection("mnist", "MNIST", "SEMEION"),
    *_detection("mnist", "MNIST", "SVHN"),
    *_detection("svhn", "SVHN", "CIFAR-10"),
    *_detection("svhn", "SVHN", "CIFAR-100"),
    Measure("MNIST: wrong against right, AUROC", "mnist", misclassification("MNIST")[1], ERRORS),
    Measure("SVHN: wrong against right, AUROC", "svhn", misclassification("SVHN")[1], ERRORS),
    _order("SEMEION"),
    _order("SVHN"),
    Measure("MNIST network on SEMEION: accuracy", "mnist", Column("accuracy", "accuracy.SEMEION"), READING),
    Measure("MNIST network on SVHN: accuracy", "mnist", Column("accuracy", "accuracy.SVHN"), READING),
)


def summary_table(archive: Archive) -> str:
    """Every measure for the plain network, the authors' attachments, the best of all others, and ours."""
    body = []
    for measure in MEASURES:
        own = [threshold(measure.task), authors(measure.task), ours(measure.task)]
        others = [cell for cell in methods(measure.task) if cell.name not in [each.name for each in own]]
        choices = [[own[0]], [own[1]], others, posthoc(measure.task), [own[2]]]
        best = [_best(archive, measure, cells) for cells in choices]
        shown = [None if each is None else mean_text(each[1], measure.column) for each in best]
        top = max((float(text.split(" ")[0]) for text in shown if text is not None), default=0.0)
        body.append([measure.label, *(_summary_cell(best[n], shown[n], top, len(choices[n]) > 1) for n in range(5))])
    seeds = [" / ".join(str(len(archive.of(cell(task)))) for task in TASKS) for cell in (threshold, authors, ours)]
    body.append(["seeds (MNIST / SVHN)", seeds[0], seeds[1], "", "", seeds[2]])
    heads = [
        "",
        "plain network",
        "ABNN, authors' settings",
        "best other method",
        "best post-hoc score",
        "abnn, our default",
    ]
    return markdown_table(heads, body)


def rank_table(archive: Archive) -> str:
    """Mean ranks (1 is best, ties share theirs) in each discipline, and their mean: each discipline counts the same."""
    names = [cell.name for cell in _all(TASKS[0])]
    known = [(measure, _means(archive, measure)) for measure in MEASURES if measure.group]
    used = [(measure, means) for measure, means in known if len(means) > 1]
    ranked = [name for name in names if used and all(name in means for _, means in used)]
    if len(ranked) < 2:
        return "not run\n"
    places = [(measure.group, dict(zip(ranked, ranks([means[name] for name in ranked])))) for measure, means in used]
    lines = {}
    for name in ranked:
        groups = [_mean([place[name] for of, place in places if of == group]) for group in GROUPS]
        lines[name] = [*groups, _mean([each for each in groups if each is not None])]
    least = [min((each for each in column if each is not None), default=None) for column in zip(*lines.values())]
    ordered = sorted(lines.items(), key=lambda line: (line[1][-1] or 0.0, line[0]))
    body = [[name, *(_rank_cell(each, best) for each, best in zip(numbers, least))] for name, numbers in ordered]
    notes = [f"{len(ranked)} methods and scores, ranked in {len(used)} of {len(known)} measures."]
    if left := [name for name in names if name not in ranked]:
        notes.append(f"Left out, for they were not run everywhere: {', '.join(left)}.")
    return f"{markdown_table(['', *GROUPS, 'all four'], body)}\n{' '.join(notes)}\n"


def ranks(values: Sequence[float]) -> list[float]:
    """The largest has rank 1; equal ones share the mean of their places."""
    return [1 + sum(other > each for other in values) + (values.count(each) - 1) / 2 for each in values]


def _all(task: str) -> tuple[Cell, ...]:
    return (*methods(task), *posthoc(task))


def _means(archive: Archive, measure: Measure) -> dict[str, float]:
    """By the name of the cell, with the digits that are shown: beyond them, equal predictions may differ by an input."""
    summaries = {cell.name: archive.over_seeds(cell, measure.column.path) for cell in _all(measure.task)}
    return {
        name: round(each.mean * measure.column.scale, measure.column.digits)
        for name, each in summaries.items()
        if each is not None
    }


def _best(archive: Archive, measure: Measure, cells: Sequence[Cell]) -> tuple[str, SeedSummary] | None:
    """The best cell's mean, and its name; nobody's where several share it, as post-hoc scores share predictions."""
    summaries = [(cell.name, archive.over_seeds(cell, measure.column.path)) for cell in cells]
    known = [(name, each) for name, each in summaries if each is not None]
    if not known:
        return None
    name, best = max(known, key=lambda pair: pair[1].mean)
    shared = sum(each.mean == best.mean for _, each in known) > 1
    return "several" if shared else name.removesuffix(" (post-hoc)"), best


def _summary_cell(best: tuple[str, SeedSummary] | None, shown: str | None, top: float, named: bool) -> str:
    if best is None or shown is None:
        return "not run"
    text = f"**{shown}**" if float(shown.split(" ")[0]) == top else shown
    return f"{text} ({best[0]})" if named else text


def _rank_cell(value: float | None, least: float | None) -> str:
    if value is None:
        return MISSING
    return f"**{value:.1f}**" if value == least else f"{value:.1f}"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
