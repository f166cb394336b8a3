"""The paper's three-way clustering accuracy on selected inputs, always beside what it gives for shuffled tier labels.

Before clustering, the paper keeps only some inputs of each tier, chosen by the very score under test. The selection
alone separates the tiers, so its accuracy means little without the accuracy of the same procedure after the pooled
scores were dealt out to the tiers at random, and without the balanced accuracy on all inputs. The record holds all three.

The paper clusters with k-means from random starts; here the partition is the optimal one, so the result is determined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, at_least_one, explain
from abnn.metrics import Result
from abnn.metrics._arrays import ArrayLike
from abnn.metrics.tiers import Groups, Matrix, cluster_confusion, tier_groups

PAPER_KEEP = (9000, 9000, 9000)
CAT_DOG_LEAST = (100, 100, 250)
_TIERS = ("id_scores", "semi_scores", "full_scores")


@dataclass(frozen=True)
class PaperTrimmedClustering(Result):
    """``accuracy`` is the paper's number; ``shuffled_accuracy`` is what the procedure gives a score without any order."""

    matrix: Matrix
    accuracy: float
    shuffled_accuracy: float
    shuffled_std: float
    shuffles: int
    untrimmed_balanced_accuracy: float
    kept_id: float
    kept_semi: float
    kept_full: float


def paper_trimmed_clustering(
    id_scores: ArrayLike,
    semi_scores: ArrayLike,
    full_scores: ArrayLike,
    keep: tuple[int, int, int] = PAPER_KEEP,
    shuffles: int = 20,
    seed: int = 0,
) -> PaperTrimmedClustering:
    """Keep the ``keep`` *least uncertain* inputs of each tier, cluster these into three, and count.

    The paper kept 9,000 of 10,000 (MNIST), 25,856 (SVHN) and 9,984 (CIFAR-10).
    """
    groups = tier_groups(id_scores, semi_scores, full_scores)
    if not isinstance(keep, tuple | list) or len(keep) != 3:
        raise InputError(explain("keep", repr(keep), "three whole numbers, for id, semi and full"))
    counts = [at_least_one(f"keep for {tier}", number) for number, tier in zip(keep, _TIERS, strict=True)]
    for number, group, tier in zip(counts, groups, _TIERS, strict=True):
        if number > len(group):
            fix = "Keep at most as many as there are; the paper kept 9 of 10 for id and full and a third for semi."
            raise InputError(explain("keep", f"{number} for {tier}", f"at most {len(group)}", fix))

    def select(all_groups: Groups) -> Groups:
        first, second, third = (np.sort(group)[:number] for group, number in zip(all_groups, counts, strict=True))
        return first, second, third

    return _cluster(groups, select, counts, shuffles, seed)


def paper_trimmed_clustering_cat_dog(
    id_scores: ArrayLike, semi_scores: ArrayLike, full_scores: ArrayLike, shuffles: int = 20, seed: int = 0
) -> PaperTrimmedClustering:
    """The selection of the paper's Cat-Dog table: 100 inputs of each tier.

    Of the sorted scores: id and semi the 100 least uncertain; full every (n // 250)-th value, of these the entries 30 to
    79 (roughly the quantiles 12 % to 32 %), each taken twice.
    """
    groups = tier_groups(id_scores, semi_scores, full_scores)
    for group, tier, least in zip(groups, _TIERS, CAT_DOG_LEAST, strict=True):
        if len(group) < least:
            fix = "The selection of the paper is not defined for fewer."
            raise InputError(explain(tier, f"{len(group)} values", f"at least {least}", fix))

    def select(all_groups: Groups) -> Groups:
        first, second, third = (np.sort(group) for group in all_groups)
        return first[:100], second[:100], np.repeat(third[:: len(third) // 250][30:80], 2)

    return _cluster(groups, select, [100, 100, 50], shuffles, seed)


def _cluster(
    groups: Groups, select: Callable[[Groups], Groups], kept: list[int], shuffles: int, seed: int
) -> PaperTrimmedClustering:
    result = cluster_confusion(*select(groups))
    rng = np.random.default_rng(at_least_one("seed", seed, least=0))
    pooled = np.concatenate(groups)
    ends = np.cumsum([len(group) for group in groups])[:2]
    chance = []
    for _ in range(at_least_one("shuffles", shuffles, least=2)):
        first, second, third = np.split(rng.permutation(pooled), ends)
        chance.append(cluster_confusion(*select((first, second, third))).accuracy)
    shares = [number / len(group) for number, group in zip(kept, groups, strict=True)]
    return PaperTrimmedClustering(
        matrix=result.matrix,
        accuracy=result.accuracy,
        shuffled_accuracy=float(np.mean(chance)),
        shuffled_std=float(np.std(chance, ddof=1)),
        shuffles=len(chance),
        untrimmed_balanced_accuracy=cluster_confusion(*groups).balanced_accuracy,
        kept_id=shares[0],
        kept_semi=shares[1],
        kept_full=shares[2],
    )
