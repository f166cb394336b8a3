"""How often does the drift monitor give a false alarm, calibration set by calibration set?

The rate that is promised by Ville's inequality is an average over calibration sets. A server keeps one set and resets after
each alarm, so the rate of that set counts. Here many sets are drawn, and for each of them many streams without drift. Only
ranks matter to the monitor, so the result is the same for every continuous distribution of scores; they are uniform here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from abnn.evaluate.provenance import provenance
from abnn.triage import drift
from research.tables import markdown_table

CONFIG: dict[str, Any] = {
    "sizes": (40, 60, 100, 200, 400, 1000),
    "alarms": (0.01, 0.05, 0.2),
    "sets": 200,
    "streams": 100,
    "length": 400,
}


def peaks_without_drift(size: int, sets: int, streams: int, length: int, seed: int = 0) -> np.ndarray:
    """Return the largest ln of the wealth in each stream, [sets, streams], for calibration sets of ``size`` scores."""
    rng = np.random.default_rng([seed, size])
    references = [drift.split_reference(rng.random(size), seed=each) for each in range(sets)]
    return peaks_of(references, (rng.random((2, sets, streams)) for _ in range(length)))


def peaks_of(references: Sequence[tuple[drift.Floats, drift.Counts]], steps: Iterable[np.ndarray]) -> np.ndarray:
    """Return what ``DriftMonitor.peak`` is at the end of each stream, for all streams at once.

    steps  one after the other: the next score of each stream, at most 1, and the number that breaks ties, [2, sets, streams]
    """
    bins = max(len(counts) for _, counts in references)
    edges = np.array([[*edges, *[1.0] * (bins - 1 - len(edges))] for edges, _ in references])  # no score is above 1
    start = np.array([[*counts, *[0] * (bins - len(counts))] for _, counts in references], np.int32)
    counts, pool, peak = start[:, None], np.zeros(1), np.ones(1)
    win, lose = np.exp(drift._WIN), np.exp(drift._LOSE)
    for number, (scores, ties) in enumerate(steps, start=1):
        place = (scores[..., None] > edges[:, None]).sum(2, keepdims=True)
        counts = counts + (np.arange(bins) == place)
        own, up_to = (np.take_along_axis(each, place, 2)[..., 0] for each in (counts, counts.cumsum(2)))
        p = (counts.sum(2) - up_to + ties * own) / counts.sum(2)
        won = np.where(drift._HIGHER, p[..., None], 1 - p[..., None]) <= drift._SIZE
        pool = (pool + 1 / (number * (number + 1) * len(drift._SIZE))) * np.where(won, win, lose)
        peak = np.maximum(peak, pool.sum(2) + 1 / (number + 1))
    return np.log(peak)


def measure_resets(seed: int = 0, config: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the false-alarm rates of single calibration sets, as JSON can hold them."""
    settings = {**CONFIG, **(config or {})}
    rows = []
    for size in settings["sizes"]:
        peaks = peaks_without_drift(size, settings["sets"], settings["streams"], settings["length"], seed)
        for alarm in settings["alarms"]:
            plain, widened = (_rates(peaks, alarm, margin) for margin in (0.0, drift.margin_for(size - size // 2)))
            rows.append({"calibration": size, "alarm": alarm, "plain": plain, "widened": widened})
    return {"experiment": "drift after a reset", "seed": seed, "config": settings, "rates": rows, **provenance()}


def _rates(peaks: np.ndarray, alarm: float, margin: float) -> dict[str, float]:
    """Return the mean rate over sets, the rate that nine of ten sets do not exceed, and the share of sets within ``alarm``.

    A set's rate is counted on a finite number of streams, so a set at exactly ``alarm`` is counted above it half of the time.
    """
    rates = (peaks >= -np.log(alarm) + margin).mean(1)
    nine_of_ten = float(np.quantile(rates, 0.9, method="inverted_cdf"))
    held = float((rates <= alarm).mean())
    return {"mean": float(rates.mean()), "nine_of_ten": nine_of_ten, "held": held, "worst": float(rates.max())}


def resets_table(content: dict[str, Any], alarm: float = 0.05) -> str:
    """Return one line for each number of calibration scores."""
    head = [
        "calibration scores",
        "margin",
        "mean over sets",
        "nine of ten sets",
        "worst set",
        "nine of ten without margin",
    ]
    rows: list[Sequence[str]] = []
    for row in content["rates"]:
        if row["alarm"] == alarm:
            shares = [row["widened"][name] for name in ("mean", "nine_of_ten", "worst")] + [row["plain"]["nine_of_ten"]]
            margin = drift.margin_for(row["calibration"] - row["calibration"] // 2)
            rows.append([f"{row['calibration']:,}", f"{margin:.2f}", *(f"{100 * share:.1f} %" for share in shares)])
    return markdown_table(head, rows, left=0)
