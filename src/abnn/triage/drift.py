"""Is today's traffic still like calibration? A test over a stream of scores that may be looked at after every input.

Under the hypothesis that calibration scores and stream are exchangeable, the conformal p-values

    p_n = (#{i < n: s_i > s_n} + U_n #{i <= n: s_i = s_n}) / n,      U_n uniform, i over calibration and stream,

are independent and uniform (Vovk, Gammerman and Shafer 2005). A gambler who bets on them with any f >= 0, int f = 1,
only gets rich by luck: the wealth W_n is a martingale that starts at 1, so P(W_n >= 1/alarm for some n) <= alarm (Ville
1939). That is the false-alarm rate, for all time and however often one looks.

Scores are compared by the bin they fall into. Bin edges come from one half of the calibration scores, counts from the
other, so that binned scores are exchangeable too and the p-values exact; memory and time per score are constant.

The rate is an average over calibration sets; after a reset the set stays, and a set whose scores happen to lie too low
makes every stream look high. So the wealth must reach e^margin / alarm, with a margin that falls with the size of the
set: then at least nine of ten sets keep the rate by themselves (simulated in research/drift.py; only ranks matter, so
it is the same for every continuous score).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import ConfigDict, Field

from abnn.errors import FileFormatError, InputError, explain
from abnn.files import parse, read_json, seal, write_json
from abnn.triage.thresholds import lift

FORMAT = "abnn-drift-1"
LEAST_SCORES = 40
AT_ONCE = 1024  # scores of a long row that are counted together
Count = Annotated[int, Field(ge=0, le=2**53)]
Counts = tuple[Count, ...]
Floats = tuple[float, ...]
LEVELS = (0.01, 0.02, *(step / 32 for step in range(1, 32)), 0.98, 0.99, 0.995, 1.0)
"""Edges at these quantiles: even in the middle, finer at the upper end, where drift hurts; the last is the maximum."""

HALF_MARGIN = 500  # from so many counted calibration scores on the margin is below one half

# Each bet puts the share `stake` of its wealth on "this p-value is below `size`" (or above 1 - `size`, for lower
# scores), at fair odds 1 / size: f(p) = 1 - stake + stake / size [p <= size].
SIZES, STAKES = (0.01, 0.03, 0.1, 0.3), (0.1, 0.3, 0.8)
_BETS = [(side, size, stake) for side in ("higher", "lower") for size in SIZES for stake in STAKES]
_SIZE = np.array([size for _, size, _ in _BETS])
_HIGHER = np.array([side == "higher" for side, _, _ in _BETS])
_WIN = np.log([1 - stake + stake / size for _, size, stake in _BETS])
_LOSE = np.log([1 - stake for _, _, stake in _BETS])


def margin_for(count: int) -> float:
    """Return by how much ln of the wealth must exceed ln(1 / alarm): from 1 to 0, falling with the counted scores."""
    return HALF_MARGIN / (HALF_MARGIN + count)


def split_reference(scores: np.ndarray, seed: int = 0, rounding: float | None = None) -> tuple[Floats, Counts]:
    """Return bin edges from a random half of the calibration scores, and how many of the other half lie in each bin.

    rounding  put edges above the scores that they come from by the scores' resolution, see
              :func:`abnn.triage.thresholds.lift`, so that rounding moves no tied score into another bin; None: do not
    """
    values = np.asarray(scores)
    if values.ndim != 1 or len(values) < LEAST_SCORES or not np.isfinite(values).all():
        numbers = f"{values.size} values of shape {values.shape}, {np.count_nonzero(~np.isfinite(values))} not finite"
        raise InputError(explain("scores", numbers, f"at least {LEAST_SCORES} finite calibration scores in one row"))
    order = np.random.default_rng(seed).permutation(len(values))
    first, second = values[order[: len(values) // 2]], values[order[len(values) // 2 :]]
    edges = np.unique(np.quantile(first, sorted(LEVELS), method="inverted_cdf"))
    edges = edges if rounding is None else np.unique(lift(edges, values, rounding))
    counts = np.bincount(np.searchsorted(edges, second), minlength=len(edges) + 1)
    return tuple(edges.tolist()), tuple(counts.tolist())


def are_bins(edges: Sequence[float], counts: Sequence[int]) -> bool:
    """Return whether edges rise, and there is one count more than edges."""
    return len(counts) == len(edges) + 1 and sorted(set(edges)) == list(edges)


@dataclass
class DriftMonitor:
    """Collects evidence that scores no longer come as they did in calibration.

    edges, reference  bins and how many calibration scores lie in each, from :func:`split_reference`; the scores that
                      were counted must not have been used for the edges
    alarm             the false-alarm rate: if nothing drifts, the probability that there is *ever* an alarm, for at
                      least nine of ten calibration sets, and on average over all
    seed              of the numbers that break ties within a bin
    counts, pool, seen, peak, alarmed_at  the state: scores in each bin, ln of the wealth of each bet, scores so far,
                                          the
                      largest ln of all wealth so far, the number of the score that raised the alarm. The defaults are
                      the state before the first score

    The wealth is a mixture of bets over shares of p-values, sides and times at which drift may begin: bets that begin
    at the k-th score get 1/(k (k + 1)) of the wealth. So never more than a factor k + 1 is lost while nothing happens.
    """

    edges: Sequence[float]
    reference: Sequence[Count]
    alarm: float = 0.01
    seed: int = 0
    counts: list[Count] = field(default_factory=list, repr=False)
    pool: list[float] = field(default_factory=list, repr=False)
    seen: Count = 0
    peak: Annotated[float, Field(ge=0)] = 0.0
    alarmed_at: Count | None = None

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    def __post_init__(self) -> None:
        self.edges, self.reference = list(self.edges), list(self.reference)
        self.counts = self.counts or list(self.reference)
        if not 0 < self.alarm < 1:
            raise InputError(explain("alarm", self.alarm, "a false-alarm rate between 0 and 1"))
        if not are_bins(self.edges, self.reference) or min(self.reference) < 0:
            numbers = f"{len(self.edges)} edges and {len(self.reference)} counts"
            raise InputError(explain("edges, counts", numbers, "rising edges, and one count more, none negative"))
        if len(self.counts) != len(self.reference) or len(self.pool) != (len(_BETS) if self.seen else 0):
            numbers, bets = f"{len(self.counts)} counts, {len(self.pool)} bets", f"{len(_BETS)} after the first score"
            raise InputError(explain("state", numbers, f"one count for each bin, and bets: {bets}"))

    @classmethod
    def from_scores(cls, scores: np.ndarray, alarm: float = 0.01, seed: int = 0) -> DriftMonitor:
        """Return a monitor that compares with these calibration scores."""
        return cls(*split_reference(scores, seed), alarm=alarm, seed=seed)

    def reset(self) -> None:
        """Forget the stream and start again from calibration; the false-alarm rate counts anew from here."""
        self.counts, self.pool = list(self.reference), []
        self.seen, self.peak, self.alarmed_at = 0, 0.0, None

    def update(self, scores: float | Iterable[float]) -> bool:
        """Take one score, or several in the order they came. Return whether there has been an alarm."""
        values = np.atleast_1d(np.asarray(scores, np.float64)).ravel()
        wrong = np.flatnonzero(~(values > -math.inf))
        good = values[: wrong[0]] if len(wrong) else values
        for first in range(0, len(good), AT_ONCE):
            self._bet(self._p_values(good[first : first + AT_ONCE]))
        if len(wrong):
            score = values[wrong[0]].item()
            raise InputError(explain("scores", score, "numbers, or +inf for an input above all others"))
        return self.alarmed

    @property
    def alarmed(self) -> bool:
        return self.alarmed_at is not None

    @property
    def margin(self) -> float:
        return margin_for(sum(self.reference))

    @property
    def log_wealth(self) -> float:
        """ln of the wealth, the evidence against "nothing drifts": 0 at the start, larger with more evidence."""
        return float(np.logaddexp(-math.log1p(self.seen), np.logaddexp.reduce(self.pool)))

    @property
    def p_value(self) -> float:
        """The p-value of "nothing drifts", valid at any time: P(it ever gets below p) <= p.

        There is an alarm once it is at most ``alarm``.
        """
        return min(1.0, math.exp(self.margin - self.peak))

    @property
    def direction(self) -> str:
        """Whether the evidence is for scores "higher" or "lower" than in calibration."""
        half = len(self.pool) // 2  # the first half of the bets are on higher scores
        higher, lower = (np.logaddexp.reduce(part) for part in (self.pool[:half], self.pool[half:]))
        return "higher" if higher >= lower else "lower"

    def _p_values(self, scores: np.ndarray) -> np.ndarray:
        """Count scores in their bins, one after the other, and return the p-value of each."""
        rows, places = np.arange(len(scores)), np.searchsorted(self.edges, scores)
        running = np.zeros((len(scores), len(self.counts)), np.int64)
        running[rows, places] = 1
        running = np.cumsum(running, 0) + np.array(self.counts)
        self.counts = running[-1].tolist()
        ties = np.array([_uniform(self.seed, self.seen + row) for row in rows]) * running[rows, places]
        above = running.sum(1) - np.take_along_axis(np.cumsum(running, 1), places[:, None], 1)[:, 0]
        return (above + ties) / running.sum(1)

    def _bet(self, p: np.ndarray) -> None:
        """Put all wealth on these p-values, one after the other."""
        numbers = self.seen + 1 + np.arange(len(p))
        entries = -np.log(numbers * (numbers + 1.0) * len(_BETS))
        won = np.where(_HIGHER, p[:, None], 1 - p[:, None]) <= _SIZE
        gains, pools = np.where(won, _WIN, _LOSE), np.empty((len(p), len(_BETS)))
        pool = np.array(self.pool) if self.pool else np.full(len(_BETS), -np.inf)
        for row, (entry, gain) in enumerate(zip(entries, gains)):
            pools[row] = pool = np.logaddexp(pool, entry) + gain
        wealth = np.logaddexp(-np.log1p(numbers), np.logaddexp.reduce(pools, axis=1))
        peaks = np.maximum(self.peak, np.maximum.accumulate(wealth))
        alarms = np.flatnonzero(peaks >= self.margin - math.log(self.alarm))
        if self.alarmed_at is None and len(alarms):
            self.alarmed_at = int(numbers[alarms[0]])
        self.pool, self.peak, self.seen = pool.tolist(), float(peaks[-1]), int(numbers[-1])

    def to_dict(self) -> dict[str, Any]:
        """Return the whole state, as JSON can hold it."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, values: Any) -> DriftMonitor:
        """Return the monitor that had this state. It goes on as if it had not stopped."""
        fix = "Restore the file, or delete it to start anew."
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise FileFormatError(f"drift monitor: it is not of the format {FORMAT}. {fix}")
        if "digest" in values and values["digest"] != seal(values)["digest"]:  # older versions wrote none
            raise FileFormatError(f"drift monitor: it was changed since it was saved. {fix}")
        state = {name: value for name, value in values.items() if name not in ("format", "digest")}
        return parse(cls, state, "drift monitor: ", fix)

    def save(self, path: str | Path) -> None:
        """Write the state with its sha256, so that a damaged file is refused."""
        write_json(Path(path), seal(self.to_dict()))

    @classmethod
    def load(cls, path: str | Path) -> DriftMonitor:
        return cls.from_dict(read_json(Path(path)))


def merge(parts: Sequence[DriftMonitor]) -> DriftMonitor:
    """Return one monitor for streams that were watched separately, each from its start, such as the parts of one job.

    Its wealth is the mean of theirs, weighted by their lengths. If nothing drifts, each has an expectation of at most
    1, and so has the mean, even where the streams depend on each other. By Markov's inequality the false-alarm rate
    holds for one look at the end.
    """
    first, total = parts[0], sum(part.seen for part in parts)
    if any((each.edges, each.reference) != (first.edges, first.reference) for each in parts):
        raise InputError(explain("parts", "monitors of different models", "monitors that started from one calibration"))
    counts = np.array([part.counts for part in parts]).sum(0) - (len(parts) - 1) * np.array(first.reference)
    merged = DriftMonitor(first.edges, first.reference, first.alarm, first.seed, counts.tolist())
    parts = [part for part in parts if part.seen]
    if parts:
        shares = np.log([[part.seen / total] for part in parts])
        merged.pool = np.logaddexp.reduce(np.array([part.pool for part in parts]) + shares, axis=0).tolist()
        merged.seen = total
        merged.peak = max(0.0, merged.log_wealth)
        merged.alarmed_at = total if merged.peak >= merged.margin - math.log(merged.alarm) else None
    return merged


def resume_monitor(fresh: DriftMonitor, path: Path) -> DriftMonitor:
    """Return the monitor stored in a file, or ``fresh`` where there is none. One of another model is an error."""
    if not path.exists():
        return fresh
    monitor = DriftMonitor.load(path)
    if (monitor.edges, monitor.reference) != (fresh.edges, fresh.reference):
        fix = "Choose another file, or delete it to start anew."
        raise InputError(explain("--drift", f"{path}, kept for another model", "a file of this model", fix))
    return monitor


def _uniform(seed: int, number: int) -> float:
    """Return a number in (0, 1) that follows from (seed, number): the state needs no generator."""
    digest = hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64
