"""Every metric of an evaluation as one nested dict of plain numbers: what run records hold and tables read.

======================================= ===========================================================================
accuracy.SET                            share of right predictions, for sets whose inputs all have a class
calibration.SET                         `abnn.metrics.calibration`, for the same sets
misclassification.SET, selective.SET    the score against the model's own errors, for the same sets
detection.SET                           all ID inputs against one other set, exact
tiers                                   where all three tiers have inputs; all sets of a tier count together
pairs.SEMI < FULL                       the same for every semi set with every full set, where there are several
quantiles.SET                           0 %, 5 %, ..., 100 % quantiles of the score
verdicts.SET                            shares of accept, notice and reject, where the evaluation has thresholds
paper_grid_detection.SET, ...           the paper's definitions, to compare with its tables and for nothing else
by_score.SCORE                          detection, misclassification, selective and tiers of every score by name
======================================= ===========================================================================

All but ``by_score`` are for the score that the evaluation names as its own. What the data does not define (the errors of
a model without errors, the tiers of two sets) has no key; no value is ever NaN, infinite or None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from abnn import metrics
from abnn.errors import InputError, explain, unknown
from abnn.evaluate.evaluation import TIERS, Evaluation, SetResult
from abnn.metrics.paper_clustering import PAPER_KEEP

Numbers: TypeAlias = dict[str, Any]
"""Nested dicts (and lists, for matrices) of floats and integers."""

_CAT_DOG_LEAST = (100, 100, 250)


def summarise(evaluation: Evaluation, by_score: bool = True) -> Numbers:
    """All metrics that the sets of ``evaluation`` allow; without ``by_score`` for the evaluation's own score alone."""
    sets = [each for each in evaluation.sets if len(each)]
    _check(evaluation.score, sets)
    labelled = [each for each in sets if each.labelled]
    names = dict.fromkeys(name for each in sets for name in each.scores)
    return _defined(
        {
            "accuracy": {each.name: metrics.tier_accuracy(each.predicted, each.labels) for each in labelled},
            "calibration": {each.name: metrics.calibration(each.probs, each.labels).to_dict() for each in labelled},
            **_of_score(evaluation.score, sets, evaluation),
            **_of_paper(evaluation.score, sets),
            "pairs": _pairs(evaluation.score, sets),
            "quantiles": {each.name: _quantiles(each.scores[evaluation.score]) for each in sets},
            "verdicts": _verdicts(evaluation, sets),
            "by_score": {
                name: _of_score(name, sets, evaluation if name == evaluation.score else None)
                for name in (names if by_score else ())
            },
        }
    )


def flatten(numbers: Numbers) -> dict[str, float]:
    """``{"tiers": {"ordered_triples": 0.9}}`` to ``{"tiers.ordered_triples": 0.9}``; entries of lists by position."""
    flat: dict[str, float] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict | list):
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                walk(value, f"{path}.{key}" if path else str(key))
        else:
            flat[path] = node

    walk(numbers, "")
    return flat


def _of_score(name: str, sets: Sequence[SetResult], judged_by: Evaluation | None) -> Numbers:
    """What one score says, on the sets that have it. Thresholds belong to one score, so only that one gets them."""
    having = [each for each in sets if name in each.scores]
    labelled = [each for each in having if each.labelled]
    known = _pooled(name, having, "id")
    others = [each for each in having if each.tier != "id"] if known.size else []
    return {
        "detection": {each.name: metrics.detection(known, each.scores[name]).to_dict() for each in others},
        "misclassification": {
            each.name: metrics.misclassification(each.scores[name], each.correct).to_dict()
            for each in labelled
            if _some_right_some_wrong(each)
        },
        "selective": {each.name: metrics.selective(each.scores[name], each.correct).to_dict() for each in labelled},
        "tiers": _tiers(name, having, judged_by),
    }


def _tiers(name: str, sets: Sequence[SetResult], judged_by: Evaluation | None) -> Numbers:
    known, semi, full = (_pooled(name, sets, tier) for tier in TIERS)
    if not (known.size and semi.size and full.size):
        return {}
    # A threshold at infinity (nothing is ever refused) is a fine verdict but no border between tiers.
    thresholds = None if judged_by is None else judged_by.thresholds
    if judged_by is not None and judged_by.class_thresholds:
        # No two cuts for all inputs, but still a verdict for each.
        levels = {tier: np.concatenate([judged_by.levels(s) for s in sets if s.tier == tier]) for tier in TIERS}
        right = [float(np.mean(levels[tier] == number)) for number, tier in enumerate(TIERS)]
        return {**metrics.tiers(known, semi, full).to_dict(), "threshold_balanced_accuracy": float(np.mean(right))}
    cuts = metrics.TierThresholds(*thresholds) if thresholds and np.isfinite(thresholds).all() else None
    return metrics.tiers(known, semi, full, cuts).to_dict()


def _of_paper(name: str, sets: Sequence[SetResult]) -> Numbers:
    known, semi, full = (_pooled(name, sets, tier) for tier in TIERS)
    others = [each for each in sets if each.tier != "id"] if known.size else []
    sizes = (known.size, semi.size, full.size)
    summary: Numbers = {
        "paper_grid_detection": {
            each.name: metrics.paper_grid_detection(known, each.scores[name]).to_dict()
            for each in others
            if _varies(known, each.scores[name])
        },
        "paper_grid_misclassification": {
            each.name: metrics.paper_grid_misclassification(each.scores[name], each.correct).to_dict()
            for each in sets
            if each.labelled and _some_right_some_wrong(each) and _varies(each.scores[name])
        },
    }
    if all(size >= least for size, least in zip(sizes, PAPER_KEEP, strict=True)):
        summary["paper_trimmed_clustering"] = metrics.paper_trimmed_clustering(known, semi, full).to_dict()
    if all(size >= least for size, least in zip(sizes, _CAT_DOG_LEAST, strict=True)):
        summary["paper_trimmed_clustering_cat_dog"] = metrics.paper_trimmed_clustering_cat_dog(
            known, semi, full
        ).to_dict()
    return summary


def _pairs(name: str, sets: Sequence[SetResult]) -> Numbers:
    """Tiers and the paper's clustering of single sets; one pair alone is what the pooled tiers are."""
    known = [each for each in sets if each.tier == "id"]
    pairs = [(semi, full) for semi in sets if semi.tier == "semi" for full in sets if full.tier == "full"]
    if len(pairs) < 2:
        return {}
    paper = ("paper_trimmed_clustering", "paper_trimmed_clustering_cat_dog")
    return {
        f"{semi.name} < {full.name}": {
            **_tiers(name, [*known, semi, full], None),
            **{key: value for key, value in _of_paper(name, [*known, semi, full]).items() if key in paper},
        }
        for semi, full in pairs
    }


def _quantiles(scores: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in np.quantile(scores.astype(np.float64), np.linspace(0, 1, 21))]


def _verdicts(evaluation: Evaluation, sets: Sequence[SetResult]) -> Numbers:
    """accept: score <= notice threshold; notice: above it and <= reject threshold; reject: above both."""
    if evaluation.thresholds is None:
        return {}
    summary: Numbers = {}
    for each in sets:
        verdict = evaluation.levels(each)
        shares = np.bincount(verdict, minlength=3) / len(each)
        summary[each.name] = {word: float(shares[i]) for i, word in enumerate(("accept", "notice", "reject"))}
        if each.labelled and (verdict == 0).any():
            summary[each.name]["accuracy_of_accepted"] = float(each.correct[verdict == 0].mean())
    return summary


def _check(score: str, sets: Sequence[SetResult]) -> None:
    names = [each.name for each in sets]
    for name in names:
        if names.count(name) > 1:
            given = f"{names.count(name)} sets called {name!r}"
            raise InputError(explain("sets", given, "a different name for each set", "Rename one of them."))
    for each in sets:
        if score not in each.scores:
            raise unknown(f"score (of the set {each.name!r})", score, each.scores)


def _pooled(name: str, sets: Sequence[SetResult], tier: str) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.float32), *(each.scores[name] for each in sets if each.tier == tier)])


def _some_right_some_wrong(each: SetResult) -> bool:
    return 0 < int(np.count_nonzero(each.correct)) < len(each)


def _varies(*groups: np.ndarray) -> bool:
    """The paper's grid runs from the least to the largest score, and needs both. NaN counts as varying: the metric names it."""
    pooled = np.concatenate(groups)
    return not np.all(pooled == pooled[0])


def _defined(node: Any) -> Any:
    """Without what is undefined: None, non-finite numbers, and the dicts that are empty then."""
    if not isinstance(node, dict):
        return node
    children = {key: _defined(value) for key, value in node.items()}
    return {key: value for key, value in children.items() if not _undefined(value)}


def _undefined(value: Any) -> bool:
    return value is None or value == {} or (isinstance(value, float) and not math.isfinite(value))
