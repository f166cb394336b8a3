"""All numbers of the page with bootstrap intervals, how they are shown, and how far two models on the same inputs differ.

Each set is resampled on its own, all models together. A difference is therefore one between models on the *same* resampled
inputs, and its interval says more than comparing two separate intervals.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from abnn import metrics
from abnn.evaluate.evaluation import TIERS, Evaluation, SetResult
from abnn.metrics import Interval
from abnn.metrics.calibration import LEAST_PROBABILITY

MOST_RESAMPLES = 400
FEWEST_RESAMPLES = 100
RESAMPLED_INPUTS = 2_000_000
"""Resamples times inputs stay near this number, so that the page of a large evaluation is written in minutes."""

Key = tuple[str, str]  # (metric, name of a set); the name is "" for numbers about tiers
SCORE, CORRECT, CONFIDENCE, BRIER, NLL = range(5)
MISTAKES = {
    "misclassification_auroc": "auroc",
    "fpr_at_tpr95_error_positive": "fpr_at_tpr95_ood_positive",
    "aupr_error": "aupr_out",
}
"""What detection calls the numbers about mistakes, with the model's own errors as its outliers."""
GAP, MINUS = "\u202f", "\u2212"  # a thin space that does not break, and the sign


@dataclass(frozen=True)
class Metric:
    """A number in words, from ``metrics.json``. ``percent`` numbers are fractions; ``higher``: more of it is better."""

    title: str
    says: str
    higher: bool = True
    percent: bool = True


_WORDS = json.loads(files("abnn.evaluate.report").joinpath("metrics.json").read_text(encoding="utf-8"))
METRICS = {name: Metric(**words) for name, words in _WORDS["metrics"].items()}
TABLES: dict[str, list[str]] = _WORDS["tables"]  # the numbers of each table of the page


@dataclass(frozen=True)
class Numbers:
    """``by_model[m][key]`` for each model; ``difference[key]`` = second minus first where both saw the same inputs."""

    by_model: tuple[Mapping[Key, Interval], ...]
    difference: Mapping[Key, Interval]
    resamples: int

    def rows(self, metrics: Sequence[str], name: str = "") -> list[dict[str, Any]]:
        """Return the rows of a table, for the numbers that any model has; "best" in a row: places of best models."""
        rows = []
        for metric in metrics:
            intervals = [numbers.get((metric, name)) for numbers in self.by_model]
            if any(intervals):
                words, difference = METRICS[metric], self.difference.get((metric, name))
                row = {"metric": words, "intervals": intervals, "difference": difference}
                rows.append({**row, "best": _best(intervals, words)})
        return rows


def measure(evaluations: Sequence[Evaluation]) -> Numbers:
    """Return everything that tables show, from one bootstrap over all models where they saw the same inputs."""
    resamples = resamples_for(max(sum(map(len, each.sets)) for each in evaluations))
    if same_inputs(evaluations):
        return _together(evaluations, resamples)
    alone = [_together([each], resamples) for each in evaluations]
    return Numbers(tuple(each.by_model[0] for each in alone), {}, resamples)


def resamples_for(inputs: int) -> int:
    return int(np.clip(RESAMPLED_INPUTS // inputs, FEWEST_RESAMPLES, MOST_RESAMPLES))


def same_inputs(evaluations: Sequence[Evaluation]) -> bool:
    """Return whether all models were shown the same sets: names, tiers, sizes, hashes and labels agree."""

    def same(one: SetResult, other: SetResult) -> bool:
        facts = [(each.name, each.tier, len(each), each.data_hash) for each in (one, other)]
        return facts[0] == facts[1] and np.array_equal(one.labels, other.labels)

    first = evaluations[0].sets
    return all(len(each.sets) == len(first) and all(map(same, first, each.sets)) for each in evaluations)


def columns(result: SetResult, score: str) -> np.ndarray:
    """Return what the numbers need of each input, however many classes there are, float64 [N, 5].

    Score, right or not, confidence, Brier score and -log p(label); the last two are zero for inputs without a class.
    """
    probs = result.probs
    rows = np.flatnonzero((result.labels >= 0) & (result.labels < probs.shape[1]))
    of_label = probs[rows, result.labels[rows]].astype(np.float64)
    table = np.zeros((len(result), 5))
    table[:, SCORE] = result.scores[score]
    table[:, CORRECT] = result.correct
    table[:, CONFIDENCE] = np.clip(probs.max(axis=1), 0, 1)
    squares = np.einsum("nk,nk->n", probs, probs, dtype=np.float64)
    table[rows, BRIER] = squares[rows] - of_label**2 + (1 - of_label) ** 2
    table[rows, NLL] = -np.log(np.maximum(of_label, LEAST_PROBABILITY))
    return table


def point_numbers(sets: Sequence[SetResult], tables: Sequence[np.ndarray]) -> dict[Key, float]:
    """Return all numbers but those about mistakes from the columns of each set; ``tables`` may be resampled."""
    values: dict[Key, float] = {}
    by_tier = {tier: [t for s, t in zip(sets, tables, strict=True) if s.tier == tier] for tier in TIERS}
    pooled = {tier: np.concatenate(parts) for tier, parts in by_tier.items() if parts}
    score = {tier: table[:, SCORE] for tier, table in pooled.items()}
    for tier in ("id", "semi"):
        if tier in pooled and all(each.labelled for each in sets if each.tier == tier):
            values[f"accuracy_{tier}", ""] = float(pooled[tier][:, CORRECT].mean())
    for low, high in (("id", "semi"), ("semi", "full"), ("id", "full")):
        if low in score and high in score:
            values[f"auroc_{low}_{high}", ""] = metrics.auroc(score[low], score[high])
    if len(score) == len(TIERS):
        values["ordered_triples", ""] = metrics.ordered_triples(*(score[tier] for tier in TIERS))
    for result, table in zip(sets, tables, strict=True):
        if result.labelled:
            values.update({(metric, result.name): value for metric, value in _of_labelled(table).items()})
        if result.tier != "id" and "id" in score:
            against_id = metrics.detection(score["id"], table[:, SCORE]).numbers()
            values.update({(metric, result.name): against_id[metric] for metric in TABLES["detection"]})
    if ("accuracy_id", "") in values:
        values.update({(metric, ""): value for metric, value in _of_labelled(pooled["id"]).items()})
    return values


def mistakes(evaluation: Evaluation, resamples: int) -> dict[Key, Interval]:
    """Return misclassification numbers of the id tier; right and wrong keep their sizes: wrong ones can be rare."""
    sets = evaluation.tier("id")
    if not sets or not all(each.labelled for each in sets):
        return {}
    table = np.concatenate([columns(each, evaluation.score) for each in sets])
    correct = table[:, CORRECT].astype(bool)
    if correct.all() or not correct.any():
        return {}
    groups = table[~correct, SCORE], table[correct, SCORE]
    intervals = metrics.bootstrap(lambda wrong, right: metrics.detection(right, wrong), *groups, resamples=resamples)
    return {(name, ""): intervals[metric] for name, metric in MISTAKES.items()}


def _best(intervals: Sequence[Interval | None], metric: Metric) -> set[int]:
    """Return the places of the best of several values, as they are printed; none where all agree."""
    printed = {place: float(f"{each.estimate:.3f}") for place, each in enumerate(intervals) if each is not None}
    best = (max if metric.higher else min)(printed.values())
    return {place for place, value in printed.items() if value == best} if len(set(printed.values())) > 1 else set()


def _of_labelled(table: np.ndarray) -> dict[str, float]:
    confidence, correct = table[:, CONFIDENCE], table[:, CORRECT]
    answered = metrics.selective(table[:, SCORE], correct).numbers()
    return {
        "accuracy": float(correct.mean()),
        **{metric: answered[metric] for metric in TABLES["selective"]},
        "ece": metrics.reliability(confidence, correct).calibration_error,
        "adaptive_ece": metrics.reliability(confidence, correct, equal_mass=True).calibration_error,
        "brier": float(table[:, BRIER].mean()),
        "nll": float(table[:, NLL].mean()),
    }


def _together(evaluations: Sequence[Evaluation], resamples: int) -> Numbers:
    """Return numbers from one bootstrap, for models that saw the same sets: each group is one set, [N, models, 5]."""
    groups = [
        np.stack([columns(each.sets[number], each.score) for each in evaluations], axis=1)
        for number in range(len(evaluations[0].sets))
    ]

    def statistic(*groups: np.ndarray) -> dict[tuple[int, Key], float]:
        rows = [point_numbers(each.sets, [g[:, m] for g in groups]) for m, each in enumerate(evaluations)]
        if len(rows) == 2:  # the last row is the difference then
            rows.append({key: value - rows[0][key] for key, value in rows[1].items()})
        return {(number, key): value for number, row in enumerate(rows) for key, value in row.items()}

    rows: list[dict[Key, Interval]] = [{} for _ in range(len(evaluations) + 1)]
    # a lone set without labels has scores to draw but no number to give
    intervals = metrics.bootstrap(statistic, *groups, resamples=resamples) if statistic(*groups) else {}
    for (number, key), interval in intervals.items():
        rows[number][key] = interval
    *by_model, difference = rows
    for numbers, evaluation in zip(by_model, evaluations, strict=True):
        numbers.update(mistakes(evaluation, resamples))
    return Numbers(tuple(by_model), difference, resamples)


def as_text(value: float, metric: Metric, signed: bool = False, unit: bool = True) -> str:
    """Return a number as 97.6 % or 0.123; a sign is in front where it is a difference."""
    number = f"{100 * value:.1f}" if metric.percent else f"{value:.3f}"
    size = number.lstrip("-")
    zero = not size.strip("0.")
    sign = "" if zero else MINUS if number.startswith("-") else "+" if signed else ""
    word = "" if not (metric.percent and unit) else f"{GAP}points" if signed else f"{GAP}%"
    return f"{sign}{size}{word}"


def percent(share: float) -> str:
    return f"{100 * share:.1f}{GAP}%"


def judge(difference: Interval | None, metric: Metric) -> str:
    """Return in words whether a difference is more than the choice of test inputs explains."""
    if difference is None:
        return "not compared"
    if difference.low <= 0 <= difference.high:
        return "no clear difference"
    return "better" if (difference.low > 0) == metric.higher else "worse"
