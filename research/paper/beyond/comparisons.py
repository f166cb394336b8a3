"""The plain network against ours, number by number: what tables show, and who is better how often."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from research.paper.beyond.corruptions import CORRUPTIONS
from research.paper.beyond.parts import FAR_KINDS, GENERATORS, SEVERITIES
from research.paper.beyond.run import Measured
from research.paper.rows import ours, threshold
from research.tables import MISSING

PLAIN, OURS = threshold("").name, ours("").name
LEVELS = (0.2, 0.5, 1.0)
"""Severities that tables show."""
EARLIER_DRAWS, EARLIER_VIEWS = 10, 5
"""What was usual for the earlier default, whose records do not say so."""


@dataclass(frozen=True)
class Comparison:
    """One number of both models, the plain one first; ``better`` is "higher" or "lower"."""

    part: str
    row: str
    column: str
    both: Sequence[float | None]
    better: str = "higher"
    scale: float = 100.0
    digits: int = 1

    @property
    def texts(self) -> tuple[str, str]:
        return self._text(self.both[0]), self._text(self.both[1])

    @property
    def winner(self) -> str:
        """Who is better as far as the digits shown tell: "plain", "ours" or "equal"; "" where a number is undefined."""
        if None in self.both:
            return ""
        plain, ours = (float(each) * (1 if self.better == "higher" else -1) for each in self.texts)
        return "equal" if plain == ours else "plain" if plain > ours else "ours"

    @property
    def cell(self) -> str:
        """Both, the better one bold."""
        both = zip(self.texts, ("plain", "ours"))
        return " → ".join(f"**{text}**" if who == self.winner else text for text, who in both)

    def _text(self, value: float | None) -> str:
        return MISSING if value is None else f"{value * self.scale:.{self.digits}f}"


def severity(measured: Measured, task: str) -> list[Comparison]:
    """AUROC against unchanged inputs at three severities, accuracy in the middle, and the order of mean scores."""
    comparisons = []
    for kind in GENERATORS:

        def both(name: str, at: float | None = None, kind: str = kind) -> list[Any]:
            values = [measured.mean(task, "severity", model, kind, name) for model in (PLAIN, OURS)]
            return values if at is None else [each[SEVERITIES.index(at)] for each in values]

        comparisons += [Comparison("severity", kind, f"AUROC at {level:g}", both("auroc", level)) for level in LEVELS]
        comparisons.append(Comparison("severity", kind, f"accuracy at {LEVELS[1]:g}", both("accuracy", LEVELS[1])))
        comparisons.append(
            Comparison("severity", kind, "rank correlation", both("rank_correlation"), scale=1.0, digits=3)
        )
    return comparisons


def far(measured: Measured, task: str) -> list[Comparison]:
    """How many far inputs are above the limit, and how confident the networks are there."""
    comparisons = []
    for kind in FAR_KINDS:
        above, sure = (
            [measured.mean(task, "far", model, kind, name) for model in (PLAIN, OURS)]
            for name in ("above", "confidence")
        )
        comparisons.append(Comparison("far", kind, "above the limit", above))
        comparisons.append(Comparison("far", kind, "mean confidence", sure, better="lower"))
    return comparisons


def draws(measured: Measured, task: str) -> list[Comparison]:
    """The plain network against the usual number of draws: mean weights, and ten in records of the earlier default."""
    counts = counts_of(measured, task, "draws", OURS)
    usual = 0 if 0 in counts else EARLIER_DRAWS
    return _counted(measured, task, "draws", f"test inputs, {counted(usual, 'draws')}", (0, counts.index(usual)))


def views(measured: Measured, task: str) -> list[Comparison]:
    """Both networks with the usual number of views."""
    usual = measured.of(task, "views")[0]["config"].get("usual_views", EARLIER_VIEWS)
    places = [counts_of(measured, task, "views", model).index(usual) for model in (PLAIN, OURS)]
    return _counted(
        measured, task, "views", f"test inputs, both with {counted(usual, 'views')}", (places[0], places[1])
    )


def _counted(measured: Measured, task: str, part: str, row: str, places: tuple[int, int]) -> list[Comparison]:
    comparisons = []
    for name in counted_columns(measured, task, part):
        plain, ours = (measured.mean(task, part, model, name) for model in (PLAIN, OURS))
        both = plain[places[0]], ours[places[1]]
        comparisons.append(Comparison(part, row, headed(name), both, **_look(name)))
    return comparisons


def corrupted(measured: Measured, task: str) -> list[Comparison]:
    """Means over the five strengths; errors only over those strengths at which both models have some."""
    comparisons = []
    for kind in CORRUPTIONS:
        for name in ("accuracy", "ece", "nll", "errors_auroc"):
            plain, ours = (measured.mean(task, "corrupted", model, kind, name)[1:] for model in (PLAIN, OURS))
            pairs = [pair for pair in zip(plain, ours, strict=True) if None not in pair]
            both = np.mean(pairs, 0).tolist() if pairs else (None, None)
            comparisons.append(Comparison("corrupted", kind, headed(name), both, **_look(name)))
    return comparisons


COMPARISONS = {"severity": severity, "far": far, "draws": draws, "views": views, "corrupted": corrupted}


def counted_columns(measured: Measured, task: str, part: str) -> list[str]:
    """What was measured over a number of draws or views."""
    names = measured.of(task, part)[0]["results"][OURS]
    return ["accuracy", "nll", "ece", "errors_auroc", *sorted(name for name in names if name.startswith("auroc "))]


def counts_of(measured: Measured, task: str, part: str, model: str) -> list[int]:
    """The numbers of draws or views that were measured."""
    return measured.of(task, part)[0]["results"][model][part]


def counted(count: int, part: str) -> str:
    """In words: "10 draws", "1 view", "mean weights"."""
    if part == "draws" and count == 0:
        return "mean weights"
    return f"{count} {part if count > 1 else part.removesuffix('s')}"


def counted_texts(measured: Measured, task: str, part: str, model: str) -> Iterable[tuple[int, list[str]]]:
    """The numbers of a model for each number of draws or views."""
    names = counted_columns(measured, task, part)
    lists = [measured.mean(task, part, model, name) for name in names]
    for place, count in enumerate(counts_of(measured, task, part, model)):
        looks = [Comparison(part, "", "", (each[place], None), **_look(name)) for name, each in zip(names, lists)]
        yield count, [look.texts[0] for look in looks]


def heads(names: Sequence[str]) -> list[str]:
    return [f"{headed(name)} {'↓' if _look(name).get('better') == 'lower' else '↑'}" for name in names]


def headed(name: str) -> str:
    known = {"ece": "ECE", "nll": "NLL", "errors_auroc": "errors AUROC"}
    return known.get(name, name.replace("auroc ", "AUROC "))


def _look(name: str) -> dict[str, Any]:
    looks: dict[str, dict[str, Any]] = {
        "ece": {"better": "lower", "digits": 1},
        "nll": {"better": "lower", "scale": 1.0, "digits": 3},
    }
    return looks.get(name, {"digits": 2} if name.startswith("auroc ") else {})
