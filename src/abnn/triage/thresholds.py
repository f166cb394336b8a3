"""Searches for thresholds: conformal quantiles, the best split, the least cost. Larger scores = more uncertain."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from abnn.decisions import COST_KINDS, Costs
from abnn.errors import InputError, explain

RESOLUTION, ROUNDING, LEAST = 1e-4, 1e-5, 2.0**-21  # see lift()
LEARNT = 2.5e-5
"""The least rounding of the learnt score, whose unit is the spread of ordinary inputs. onnxruntime rounds differently
than torch, and where all inputs are equal, no batch shows it."""


def conformal_rank(count: int, share: float, confidence: float | None = None) -> int:
    """Return which of ``count`` sorted scores to use as threshold; ``count + 1`` where none is high enough.

    Without ``confidence`` it is k = ceil((n + 1)(1 - share)): a new good input lies above the k-th smallest score with
    probability at most ``share``, over the random choice of calibration set and input (Papadopoulos et al. 2002; Vovk
    et al. 2005). With ``confidence`` it is the smallest k with P[Bin(n, 1 - share) < k] >= confidence: then with at
    least that probability the calibration set is one for which at most ``share`` of *all* new good inputs lie above
    (Vovk 2012; the tolerance limits of Wilks 1941).
    """
    if confidence is None:
        return math.ceil((count + 1) * (1 - share) - 1e-9)
    from scipy.stats import binom

    return int(binom.ppf(confidence, count, 1 - share)) + 1


def least_count(share: float, confidence: float | None = None) -> int:
    """Return the smallest number of calibration scores for which :func:`conformal_rank` finds a threshold."""
    if confidence is None:
        return math.ceil(1 / share - 1e-9) - 1
    return math.ceil(math.log1p(-confidence) / math.log1p(-share) - 1e-9)


def conformal_quantile(scores: np.ndarray, share: float, strict: bool = True, confidence: float | None = None) -> float:
    """Return the threshold that a new good input exceeds with probability at most ``share``.

    Too few scores for the promise are an error; without ``strict``, the largest score comes back instead.
    """
    rank = conformal_rank(len(scores), share, confidence)
    if rank > len(scores):
        if strict or len(scores) == 0:
            sure = "" if confidence is None else f" with confidence {confidence:.1%}"
            needed = f"at least {least_count(share, confidence)} to promise {share:.1%}{sure}"
            raise InputError(explain("loader", f"{len(scores)} good inputs", needed, "Hold out more data."))
        rank = len(scores)
    return float(np.partition(scores, rank - 1)[rank - 1])


def lift(limit: Any, scores: np.ndarray, rounding: float = 0.0) -> Any:
    """Return a threshold, or several, raised by the resolution of ``scores``, the scores of good inputs.

    The score of one input differs a little from batch to batch, because sums are rounded in another order. A threshold
    that is exactly the score of an input would then fall on either side of all inputs that are equal to it. If no score
    is off by more than half of the resolution, an input above the lifted quantile of rounded scores is above the
    quantile of exact ones: the promise holds for tied scores, too. The resolution is the largest of

        1e-4 (Q_95 - Q_5),    1e-5 |limit|,    2^-21 (a few roundings of a probability in float32),    4 rounding.

    rounding  by how much the scores of some inputs differed between batches; for the learnt score at least ``LEARNT``
    """
    low, high = np.quantile(scores, (0.05, 0.95))
    least = max(RESOLUTION * float(high - low), LEAST, 4 * rounding)
    return limit + np.maximum(least, ROUNDING * np.abs(limit))


def best_split(low: np.ndarray, high: np.ndarray) -> float:
    """Return the threshold t that maximises 1/2 [P(low <= t) + P(high > t)]; the smallest such score."""
    candidates = np.unique(np.concatenate([low, high]))
    low_share = np.searchsorted(np.sort(low), candidates, side="right") / max(1, len(low))
    high_share = 1 - np.searchsorted(np.sort(high), candidates, side="right") / max(1, len(high))
    return float(candidates[np.argmax(low_share + high_share)])


def cheapest_thresholds(scores: np.ndarray, kinds: np.ndarray, costs: Costs) -> tuple[float, float, float]:
    """Return (notice, reject, expected cost per input) with the least cost on these inputs, exactly, in O(n log n).

    With a_i, n_i, r_i the weighted costs of the verdicts for input i, thresholds t <= u cost

        sum_i n_i + sum_{s_i <= t} (a_i - n_i) + sum_{s_i > u} (r_i - n_i),

    a sum of a function of t and one of u: a running minimum over t for every u >= t finds the best pair among all. Ties
    go to the larger thresholds, so that nothing is warned about or refused without a gain. ``kinds`` are numbers into
    ``COST_KINDS``; each kind but "far" weighs as often as it comes, and far inputs together weigh ``costs.far``.
    """
    is_far = kinds == COST_KINDS.index("far")
    if not (~is_far).any() or (costs.far > 0 and not is_far.any()):
        raise InputError(explain("scores", f"{(~is_far).sum()} near and {is_far.sum()} far inputs", "some of both"))
    weights = np.where(is_far, costs.far / max(1, is_far.sum()), (1 - costs.far) / max(1, (~is_far).sum()))
    accept, notice, reject = costs.table[:, kinds] * weights
    values, place = np.unique(scores, return_inverse=True)
    # One candidate below every score, so that nothing at all may be accepted; the number just below in the scores'
    # type.
    candidates = np.append(np.nextafter(values[0], values.dtype.type(-np.inf)), values)
    size = len(values)
    below = np.append(0.0, np.cumsum(np.bincount(place, accept - notice, size)))
    above = np.append(0.0, np.cumsum(np.bincount(place, reject - notice, size)))
    above = above[-1] - above
    tolerance = 1e-12 * float(costs.table.max() + 1)  # sums of equal costs in another order are still a tie
    cheap = below <= np.minimum.accumulate(below) + tolerance
    best_low = np.maximum.accumulate(np.where(cheap, np.arange(size + 1), 0))
    total = below[best_low] + above
    high = int(np.flatnonzero(total <= total.min() + tolerance)[-1])
    low = int(best_low[high])
    return float(candidates[low]), float(candidates[high]), float(total[high] + notice.sum())


def quantiles(scores: np.ndarray) -> tuple[float, ...]:
    """Return 0 %, 1 %, ..., 100 % of the scores, to seven digits."""
    return tuple(map(seven_digits, np.quantile(scores, np.arange(101) / 100, method="inverted_cdf")))


def seven_digits(value: float) -> float:
    """Return a score with seven digits, as quantiles are stored."""
    return float(f"{value:.7g}")
