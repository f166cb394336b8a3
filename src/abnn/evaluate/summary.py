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
from abnn.decisions import VERDICTS
from abnn.evaluate.evaluation import TIERS, Evaluation, SetResult

Numbers: TypeAlias = dict[str, Any]  # nested dicts (and lists, for matrices) of floats and integers


def summarise(evaluation: Evaluation, by_score: bool = True) -> Numbers:
    """Return all metrics that the sets of ``evaluation`` allow; without ``by_score`` for its own score alone."""
    sets, score = [each for each in evaluation.sets if len(each)], evaluation.score
    labelled = [each for each in sets if each.labelled]
    good, pairs = [each for each in sets if each.tier == "id"], semi_full_pairs(sets)
    names = dict.fromkeys(name for each in sets for name in each.scores) if by_score else ()
    return _defined(
        {
            "accuracy": {each.name: metrics.tier_accuracy(each.predicted, each.labels) for each in labelled},
            "calibration": {each.name: metrics.calibration(each.probs, each.labels).to_dict() for each in labelled},
            **_of_score(score, sets, evaluation),
            # one pair alone is what the pooled tiers are
            "pairs": {
                f"{semi.name} < {full.name}": _tiers(score, [*good, semi, full], None)
                for semi, full in (pairs if len(pairs) > 1 else ())
            },
            "quantiles": {each.name: _quantiles(each.scores[score]) for each in sets},
            "verdicts": {each.name: _verdicts(evaluation, each) for each in sets if evaluation.thresholds},
            "by_score": {name: _of_score(name, sets, evaluation if name == score else None) for name in names},
        }
    )


def flatten(numbers: Numbers) -> dict[str, float]:
    """Return numbers by path, entries of lists by position: {"tiers": {"auroc": 0.9}} as {"tiers.auroc": 0.9}."""
    flat: dict[str, float] = {}

    def walk(node: Any, path: str) -> None:
        if isinstance(node, dict | list):
            for key, value in node.items() if isinstance(node, dict) else enumerate(node):
                walk(value, f"{path}.{key}" if path else str(key))
        else:
            flat[path] = node

    walk(numbers, "")
    return flat


def pooled(name: str, sets: Sequence[SetResult], tier: str) -> np.ndarray:
    """Return one score of all sets of a tier, one after another."""
    return np.concatenate([np.zeros(0, np.float32), *(each.scores[name] for each in sets if each.tier == tier)])


def semi_full_pairs(sets: Sequence[SetResult]) -> list[tuple[SetResult, SetResult]]:
    """Return every semi set with every full set."""
    return [(semi, full) for semi in sets if semi.tier == "semi" for full in sets if full.tier == "full"]


def _of_score(name: str, sets: Sequence[SetResult], judged_by: Evaluation | None) -> Numbers:
    """Return what one score says, on the sets that have it. Thresholds belong to one score, and only that gets them."""
    having = [each for each in sets if name in each.scores]
    labelled = [each for each in having if each.labelled]
    mixed = [each for each in labelled if 0 < np.count_nonzero(each.correct) < len(each)]
    good = pooled(name, having, "id")
    others = [each for each in having if each.tier != "id" and good.size]
    return {
        "detection": {each.name: metrics.detection(good, each.scores[name]).to_dict() for each in others},
        "misclassification": {s.name: metrics.misclassification(s.scores[name], s.correct).to_dict() for s in mixed},
        "selective": {s.name: metrics.selective(s.scores[name], s.correct).to_dict() for s in labelled},
        "tiers": _tiers(name, having, judged_by),
    }


def _tiers(name: str, sets: Sequence[SetResult], judged_by: Evaluation | None) -> Numbers:
    good, semi, full = (pooled(name, sets, tier) for tier in TIERS)
    if not (good.size and semi.size and full.size):
        return {}
    if judged_by is not None and judged_by.class_thresholds:
        # No two cuts for all inputs, but still a verdict for each.
        levels = [np.concatenate([judged_by.levels(s) for s in sets if s.tier == tier]) for tier in TIERS]
        right = [float(np.mean(level == number)) for number, level in enumerate(levels)]
        return {**metrics.tiers(good, semi, full).to_dict(), "threshold_balanced_accuracy": float(np.mean(right))}
    # A threshold at infinity (nothing is ever refused) is a fine verdict but no border between tiers.
    thresholds = None if judged_by is None else judged_by.thresholds
    cuts = metrics.TierThresholds(*thresholds) if thresholds and np.isfinite(thresholds).all() else None
    return metrics.tiers(good, semi, full, cuts).to_dict()


def _quantiles(scores: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in np.quantile(scores.astype(np.float64), np.linspace(0, 1, 21))]


def _verdicts(evaluation: Evaluation, result: SetResult) -> Numbers:
    levels = evaluation.levels(result)
    shares = np.bincount(levels, minlength=len(VERDICTS)) / len(result)
    numbers: Numbers = dict(zip(VERDICTS, shares.tolist(), strict=True))
    if result.labelled and (levels == 0).any():
        numbers["accuracy_of_accepted"] = float(result.correct[levels == 0].mean())
    return numbers


def _defined(node: Any) -> Any:
    """Return a tree without what is undefined: None, non-finite numbers, and the dicts that are empty then."""
    if not isinstance(node, dict):
        return None if isinstance(node, float) and not math.isfinite(node) else node
    children = {key: _defined(value) for key, value in node.items()}
    return {key: value for key, value in children.items() if value is not None and value != {}}
