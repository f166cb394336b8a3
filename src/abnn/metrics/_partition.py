"""The optimal partition of numbers into three clusters: k-means in one dimension, solved exactly.

In one dimension the clusters of least squared error are intervals, so two cuts describe them. For a fixed end of the
second cluster the best first cut moves only to the right as that end does, so all best first cuts follow from a
divide-and-conquer search in O(n log n), which here runs over one whole level of the recursion at a time.
"""

from __future__ import annotations

import numpy as np

from abnn.metrics._arrays import Floats, Ints


def three_clusters(numbers: Floats) -> tuple[float, float]:
    """The largest member of the first and of the second of the three clusters with the least squared error.

    A cluster then holds what is <= the first bound, what is between the bounds, and what is above the second. The result
    is optimal up to the rounding of sums in float64 (about 1e-14 of the total squared error), it needs no start values,
    and it does not depend on the order of the input. Equal numbers are never separated, and of partitions with the same
    error the one with the smaller second bound is taken. With fewer than three distinct numbers, each is a cluster of its own, and
    the upper clusters are empty.
    """
    values, weights = np.unique(numbers, return_counts=True)
    if len(values) < 3:
        return float(values[0]), float(values[-1])
    gain = _Gain(values, weights)
    ends = np.arange(2, len(values))
    cuts, gains = _best_first_cuts(gain, ends)
    best = int(np.argmax(gains + gain(ends, np.full_like(ends, len(values)))))
    return float(values[cuts[best] - 1]), float(values[ends[best] - 1])


class _Gain:
    """(sum of a run of values)^2 / (its size). Squared error = sum of squares - gains, so the gains are maximised."""

    def __init__(self, values: Floats, weights: Ints) -> None:
        # Powers of two scale exactly and keep squares in range; centring makes the squares as small as they can be.
        scaled = np.ldexp(values, -int(np.frexp(np.abs(values).max())[1]))
        centred = scaled - np.average(scaled, weights=weights)
        sums = np.cumsum(np.multiply(centred, weights, dtype=np.longdouble))
        self._sums = np.append(0.0, sums.astype(np.float64))
        self._weights = np.append(0, np.cumsum(weights))

    def __call__(self, start: Ints, stop: Ints) -> Floats:
        return (self._sums[stop] - self._sums[start]) ** 2 / (self._weights[stop] - self._weights[start])


def _best_first_cuts(gain: _Gain, ends: Ints) -> tuple[Ints, Floats]:
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


def _best_in_ranges(gain: _Gain, ends: Ints, low: Ints, high: Ints) -> tuple[Ints, Floats]:
    """For each end, the first best cut in low..high: all ranges laid end to end, then one maximum per range."""
    lengths = high - low + 1
    starts = np.cumsum(lengths) - lengths
    cut = np.arange(lengths.sum()) + np.repeat(low - starts, lengths)
    value = gain(np.zeros_like(cut), cut) + gain(cut, np.repeat(ends, lengths))
    best = np.maximum.reduceat(value, starts)
    hits = np.flatnonzero(value == np.repeat(best, lengths))
    return cut[hits[np.searchsorted(hits, starts)]], best
