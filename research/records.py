"""Run records of experiments: smaller files, and whether their numbers still come out of their arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records import Record, is_record
from abnn.evaluate.summary import flatten
from abnn.files import read_json
from research.metrics import summarise

FLOAT32_BITS = 24


def rounded(evaluation: Evaluation, bits: int) -> Evaluation:
    """The same with scores of fewer significant bits than the 24 of float32, which makes records smaller.

    16 bits keep a relative 2^-17, and can make neighbouring scores equal but never exchange them. Thresholds are rounded
    alike: one is often one of the scores, and must not lie below it afterwards.
    """
    if not isinstance(bits, int) or not 8 <= bits <= FLOAT32_BITS:
        raise InputError(explain("bits", repr(bits), f"a whole number from 8 to {FLOAT32_BITS}"))
    sets = tuple(
        replace(each, scores={name: round_bits(values, bits) for name, values in each.scores.items()})
        for each in evaluation.sets
    )
    if evaluation.thresholds is None or bits == FLOAT32_BITS:
        return replace(evaluation, sets=sets)
    pairs = np.array([evaluation.thresholds, *evaluation.class_thresholds], np.float32)
    common, *by_class = (tuple(pair) for pair in round_bits(pairs, bits).tolist())
    return replace(evaluation, sets=sets, thresholds=common, class_thresholds=tuple(by_class))


def round_bits(values: np.ndarray, bits: int) -> np.ndarray:
    """Float32 rounded to ``bits`` significant bits, half to even. Never exchanges two values, but can make them equal."""
    drop = FLOAT32_BITS - bits
    pattern = np.ascontiguousarray(values, np.float32).view(np.uint32)
    if drop == 0:
        return pattern.view(np.float32)
    half = np.uint32((1 << (drop - 1)) - 1)
    rounded = (pattern + half + (pattern >> np.uint32(drop) & np.uint32(1))) >> np.uint32(drop) << np.uint32(drop)
    numbers = rounded.view(np.float32)
    return np.where(np.isfinite(numbers), numbers, pattern.view(np.float32))  # the very largest would round to infinity


def disagreements(record: Record, tolerance: float = 1e-9) -> dict[str, tuple[float, float | None]]:
    """Numbers that differ when recomputed: by path, as recorded and as recomputed (None if it is no longer defined).

    On the machine that wrote a record all numbers are equal; another processor may add in another order, hence the
    tolerance. Metrics that this version has and the record has not are no disagreement.
    """
    again = flatten(summarise(record.evaluation()))

    def same(path: str, value: float) -> bool:
        return path in again and abs(again[path] - value) <= tolerance * max(1.0, abs(value))

    return {path: (value, again.get(path)) for path, value in record.numbers.items() if not same(path, value)}


def looks_like_record(path: Path) -> bool:
    """Whether a file is a record, or too damaged to tell."""
    try:
        return is_record(read_json(path))
    except FileFormatError:
        return True
