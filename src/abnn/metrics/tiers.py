"""Three tiers of data, id < semi < full: does the score grow with the distance from what the network was trained on?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, explain
from abnn.metrics._arrays import ArrayLike, Floats, Ints, Result, as_labels, as_scores
from abnn.metrics.detection import Tally, auroc_of, tally

Matrix = tuple[tuple[int, ...], ...]
Groups = tuple[Floats, Floats, Floats]
Gain = Callable[[Ints, Ints], Floats]


@dataclass(frozen=True)
class TierThresholds(Result):
    """Two cuts on the score: ``id`` if score <= id_semi, ``semi`` if above that and <= semi_full, else ``full``."""

    id_semi: float
    semi_full: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.id_semi) and np.isfinite(self.semi_full) and self.id_semi <= self.semi_full):
            fault = f"id_semi={self.id_semi}, semi_full={self.semi_full}"
            fix = "Swap the two, or choose them with abnn.calibrate."
            raise InputError(explain("thresholds", fault, "two finite numbers, id_semi <= semi_full", fix))


@dataclass(frozen=True)
class TierConfusion(Result):
    """Rows are the true tiers id, semi, full; columns the tiers that the two thresholds give."""

    matrix: Matrix
    thresholds: TierThresholds
    accuracy: float
    balanced_accuracy: float
    recall_id: float
    recall_semi: float
    recall_full: float


@dataclass(frozen=True)
class Tiers(Result):
    """``threshold`` is None unless thresholds were given; ``clusters`` needs none. Chance is 1/2, 1/6 and 1/3."""

    auroc_id_below_semi: float
    auroc_semi_below_full: float
    auroc_id_below_full: float
    ordered_triples: float
    cluster_balanced_accuracy: float
    threshold_balanced_accuracy: float | None
    clusters: TierConfusion
    threshold: TierConfusion | None


def tiers(
    id_scores: ArrayLike, semi_scores: ArrayLike, full_scores: ArrayLike, thresholds: TierThresholds | None = None
) -> Tiers:
    """All tier metrics. ``thresholds`` must come from other data, as those of `abnn.calibrate` do."""
    groups = tier_groups(id_scores, semi_scores, full_scores)
    counts = tally(*groups)
    clusters = cluster_confusion(*groups)
    by_threshold = None if thresholds is None else tier_confusion(*groups, thresholds)
    return Tiers(
        auroc_id_below_semi=auroc_of(counts, 0, 1),
        auroc_semi_below_full=auroc_of(counts, 1, 2),
        auroc_id_below_full=auroc_of(counts, 0, 2),
        ordered_triples=_ordered_triples(counts),
        cluster_balanced_accuracy=clusters.balanced_accuracy,
        threshold_balanced_accuracy=None if by_threshold is None else by_threshold.balanced_accuracy,
        clusters=clusters,
        threshold=by_threshold,
    )


def ordered_triples(id_scores: ArrayLike, semi_scores: ArrayLike, full_scores: ArrayLike) -> float:
    """P(id < semi < full) for one random input of each tier, equal scores put in random order.

    A triple with one tie counts 1/2, a triple of three equal scores 1/6, so that a constant score gets exactly the 1/6
    of pure chance. This is the volume under the three-class ROC surface (Nakas and Yiannoutsos, 2004).
    """
    return _ordered_triples(tally(*tier_groups(id_scores, semi_scores, full_scores)))


def tier_confusion(
    id_scores: ArrayLike, semi_scores: ArrayLike, full_scores: ArrayLike, thresholds: TierThresholds
) -> TierConfusion:
    """Sort every input into a tier with two given thresholds."""
    groups = tier_groups(id_scores, semi_scores, full_scores)
    bounds = (thresholds.id_semi, thresholds.semi_full)
    rows = [np.bincount(np.searchsorted(bounds, group, side="left"), minlength=3) for group in groups]
    recalls = [float(row[tier] / row.sum()) for tier, row in enumerate(rows)]
    accuracy = float(sum(row[tier] for tier, row in enumerate(rows)) / sum(len(group) for group in groups))
    matrix = tuple(tuple(int(cell) for cell in row) for row in rows)
    return TierConfusion(matrix, thresholds, accuracy, float(np.mean(recalls)), *recalls)


def cluster_confusion(id_scores: ArrayLike, semi_scores: ArrayLike, full_scores: ArrayLike) -> TierConfusion:
    """Sort every input into a tier by the optimal three-cluster partition of the pooled scores, ordered by centre.

    No labels are used, but the cuts depend on the pooled scores, so on how many inputs each tier has. With fewer than
    three distinct scores the upper clusters are empty.
    """
    groups = tier_groups(id_scores, semi_scores, full_scores)
    return tier_confusion(*groups, TierThresholds(*three_clusters(np.concatenate(groups))))


def tier_accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """Share of right class predictions on one tier whose inputs have true labels (ID and, often, semi)."""
    predicted = as_labels(predictions, "predictions")
    return float(np.mean(predicted == as_labels(labels, "labels", len(predicted), "predictions")))


def tier_groups(id_scores: ArrayLike, semi_scores: ArrayLike, full_scores: ArrayLike) -> Groups:
    """The three arrays, checked."""
    good, semi = as_scores(id_scores, "id_scores"), as_scores(semi_scores, "semi_scores")
    return good, semi, as_scores(full_scores, "full_scores")


def _ordered_triples(counts: Tally) -> float:
    """sum over semi scores v of P(id < v) P(full > v), with the fractions for ties."""
    at = counts.at / counts.sizes[:, None]
    id_below = counts.below[0] / counts.sizes[0]
    full_above = 1 - counts.at_most[2] / counts.sizes[2]
    ordered = id_below * full_above + (at[0] * full_above + id_below * at[2]) / 2 + at[0] * at[2] / 6
    return float(np.sum(at[1] * ordered))


def three_clusters(numbers: Floats) -> tuple[float, float]:
    """The largest member of the first and of the second of the three clusters with the least squared error.

    This is k-means in one dimension, solved exactly, up to the rounding of sums in float64 (about 1e-14 of the total squared
    error). Clusters are intervals, so two cuts describe them: the bounds belong to the lower cluster. For a fixed end of the
    second cluster the best first cut moves only to the right as that end does, so all best first cuts follow from a
    divide-and-conquer search in O(n log n), which here runs over one whole level of the recursion at a time. Of partitions
    with the same error the one with the smaller second bound is taken. With fewer than three distinct numbers, each is a
    cluster of its own, and the upper clusters are empty.
    """
    values, weights = np.unique(numbers, return_counts=True)
    if len(values) < 3:
        return float(values[0]), float(values[-1])
    # Powers of two scale exactly and keep squares in range; centring makes the squares as small as they can be.
    scaled = np.ldexp(values, -int(np.frexp(np.abs(values).max())[1]))
    centred = scaled - np.average(scaled, weights=weights)
    sums = np.append(0.0, np.cumsum(np.multiply(centred, weights, dtype=np.longdouble)).astype(np.float64))
    sizes = np.append(0, np.cumsum(weights))

    def gain(start: Ints, stop: Ints) -> Floats:
        """(sum of a run of values)^2 / (its size). Squared error = sum of squares - gains, so the gains are maximised."""
        return (sums[stop] - sums[start]) ** 2 / (sizes[stop] - sizes[start])

    ends = np.arange(2, len(values))
    cuts, gains = _best_first_cuts(gain, ends)
    best = int(np.argmax(gains + gain(ends, np.full_like(ends, len(values)))))
    return float(values[cuts[best] - 1]), float(values[ends[best] - 1])


def _best_first_cuts(gain: Gain, ends: Ints) -> tuple[Ints, Floats]:
    """For each end e, the c in 1..e-1 with the largest gain of [0, c) and [c, e) together, and that gain."""
    rows = len(ends)
    cuts = np.zeros(rows, dtype=np.int64)
    gains = np.zeros(rows)
    stride = 1 << (rows.bit_length() - 1)
    while stride:
        row = np.arange(stride - 1, rows, 2 * stride)
        before, after = row - stride, row + stride  # both solved at a coarser level, where they exist
        low = np.where(before >= 0, cuts[before], 1)
        high = np.where(after < rows, cuts[np.minimum(after, rows - 1)], ends[row] - 1)
        high = np.minimum(high, ends[row] - 1)
        cuts[row], gains[row] = _best_in_ranges(gain, ends[row], low, high)
        stride //= 2
    return cuts, gains


def _best_in_ranges(gain: Gain, ends: Ints, low: Ints, high: Ints) -> tuple[Ints, Floats]:
    """For each end, the first best cut in low..high: all ranges laid end to end, then one maximum per range."""
    lengths = high - low + 1
    starts = np.cumsum(lengths) - lengths
    cut = np.arange(lengths.sum()) + np.repeat(low - starts, lengths)
    value = gain(np.zeros_like(cut), cut) + gain(cut, np.repeat(ends, lengths))
    best = np.maximum.reduceat(value, starts)
    hits = np.flatnonzero(value == np.repeat(best, lengths))
    return cut[hits[np.searchsorted(hits, starts)]], best
