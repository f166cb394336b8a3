"""One sort for all rank metrics: the distinct scores, and how many of each group lie at or below each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from abnn.metrics._arrays import Floats, Ints


@dataclass(frozen=True, eq=False)
class Tally:
    """Counts of several groups at the distinct values of all of them together.

    ``at_most[g, k]`` is the number of members of group g with a score <= ``values[k]``. Every threshold that separates
    the groups differently corresponds to one k, or lies below all values, so nothing is lost and ties stay together.
    """

    values: Floats
    at_most: Ints

    @cached_property
    def sizes(self) -> Ints:
        return self.at_most[:, -1]

    @cached_property
    def at(self) -> Ints:
        return np.diff(self.at_most, axis=1, prepend=0)

    @cached_property
    def below(self) -> Ints:
        return self.at_most - self.at

    @cached_property
    def at_least(self) -> Ints:
        return self.sizes[:, None] - self.below


def tally(*groups: Floats) -> Tally:
    """Count every group at the distinct values of all groups, in O(n log n)."""
    ordered = [np.sort(group) for group in groups]
    pooled = np.sort(np.concatenate(ordered), kind="stable")  # a merge: the parts are sorted already
    values = pooled[np.append(True, pooled[1:] != pooled[:-1])]
    at_most = np.stack([np.searchsorted(group, values, side="right") for group in ordered])
    return Tally(values, at_most.astype(np.int64))
