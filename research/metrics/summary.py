"""All numbers of :mod:`abnn.evaluate.summary`, and the paper's own beside them: what the records of ``results/`` hold.

=================================== ====================================================================================
paper_grid_detection.SET            `paper_grid_detection` of all ID inputs against one other set
paper_grid_misclassification.SET    `paper_grid_misclassification`, for sets whose inputs all have a class
paper_trimmed_clustering,           the paper's clusterings, where the tiers have as many inputs as they need
paper_trimmed_clustering_cat_dog
pairs.SEMI < FULL.paper_...         the clusterings of every semi set with every full set, where there are several
=================================== ====================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abnn.evaluate import summary
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.summary import Numbers
from research.metrics.clustering import CAT_DOG_LEAST, PAPER_KEEP, paper_trimmed_clustering
from research.metrics.clustering import paper_trimmed_clustering_cat_dog as cat_dog_clustering
from research.metrics.grid import paper_grid_detection, paper_grid_misclassification


def summarise(evaluation: Evaluation, by_score: bool = True) -> Numbers:
    """Return what :func:`abnn.evaluate.summary.summarise` does, with the paper's numbers of the evaluation's own score."""
    numbers, name = summary.summarise(evaluation, by_score), evaluation.score
    sets = [each for each in evaluation.sets if len(each)]
    good = summary.pooled(name, sets, "id")
    grids: Numbers = {
        "paper_grid_detection": {
            each.name: paper_grid_detection(good, each.scores[name]).to_dict()
            for each in sets
            if each.tier != "id" and good.size and _varies(good, each.scores[name])
        },
        "paper_grid_misclassification": {
            each.name: paper_grid_misclassification(each.scores[name], each.correct).to_dict()
            for each in sets
            if each.labelled and 0 < each.correct.sum() < len(each) and _varies(each.scores[name])
        },
    }
    for semi, full in summary.semi_full_pairs(sets):
        if pair := numbers.get("pairs", {}).get(f"{semi.name} < {full.name}"):
            pair.update(_clusterings(name, [*(each for each in sets if each.tier == "id"), semi, full]))
    return {**numbers, **{key: value for key, value in grids.items() if value}, **_clusterings(name, sets)}


def _clusterings(name: str, sets: Sequence[SetResult]) -> Numbers:
    good, semi, full = (summary.pooled(name, sets, tier) for tier in summary.TIERS)
    sizes = len(good), len(semi), len(full)
    numbers: Numbers = {}
    if all(size >= least for size, least in zip(sizes, PAPER_KEEP, strict=True)):
        numbers["paper_trimmed_clustering"] = paper_trimmed_clustering(good, semi, full).to_dict()
    if all(size >= least for size, least in zip(sizes, CAT_DOG_LEAST, strict=True)):
        numbers["paper_trimmed_clustering_cat_dog"] = cat_dog_clustering(good, semi, full).to_dict()
    return numbers


def _varies(*groups: np.ndarray) -> bool:
    """The paper's grid runs from the least to the largest score, and needs both. NaN counts as varying: the metric names it."""
    pooled = np.concatenate(groups)
    return not np.all(pooled == pooled[0])
