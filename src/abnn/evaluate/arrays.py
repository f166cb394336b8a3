"""The arrays of a record: what the model said about every input of every set, as one ``.npz``.

Probabilities are stored as their logarithms in float16: every -log p, so also the NLL, is right to a relative 2^-11 for
small probabilities and for those close to one alike, where float16 probabilities would round to 0 and 1. The order
"first largest" is kept, so predictions and accuracy are exact.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from abnn.errors import InputError, explain
from abnn.evaluate.evaluation import SetResult


@dataclass(frozen=True)
class SetEntry:
    """One set as the JSON describes it; its arrays are in the ``.npz``."""

    name: str
    tier: str
    inputs: int
    scores: tuple[str, ...]
    skipped: tuple[str, ...]
    data_hash: str

    @classmethod
    def of(cls, each: SetResult) -> SetEntry:
        """Return what the JSON says about a set."""
        return cls(each.name, each.tier, len(each), tuple(each.scores), tuple(each.skipped), each.data_hash)


def pack(sets: Collection[SetResult], images: bool) -> bytes:
    """Return an ``.npz`` as `numpy.load` reads it; equal arrays give equal bytes. LZMA is smaller than deflate here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for number, each in enumerate(sets):
            for name, array in _stored(each, images).items():
                member = zipfile.ZipInfo(f"{number}/{name}.npy", (1980, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_LZMA
                member.external_attr = 0o644 << 16
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _stored(each: SetResult, images: bool) -> dict[str, np.ndarray]:
    scores = np.array(list(each.scores.values()), np.float32).reshape(len(each.scores), len(each))
    if not np.isfinite(scores).all():
        name = list(each.scores)[int(np.argmin(np.isfinite(scores).all(axis=1)))]
        fix = "Find out why the model gave NaN or infinity there."
        raise InputError(explain(f"scores[{name!r}] of {each.name!r}", "values not finite", "numbers", fix))
    return {
        "log_probs": log_probabilities(each.probs),
        "labels": np.asarray(each.labels, np.int32),
        "scores": scores,
        "shown": np.asarray(each.shown if images else each.shown[:0], np.int32),
        "images": np.asarray(each.images if images else each.images[:0], np.uint8),
    }


def unpack(content: bytes, entries: Collection[SetEntry]) -> tuple[SetResult, ...]:
    """Return the sets that :func:`pack` packed, as ``entries`` describe them; numpy raises errors on other content."""
    results = []
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        for number, entry in enumerate(entries):
            names = ("log_probs", "labels", "scores", "shown", "images")
            log_probs, labels, scores, shown, images = (arrays[f"{number}/{name}"] for name in names)
            sizes = (len(log_probs), *scores.shape)
            if log_probs.ndim != 2 or sizes != (entry.inputs, len(entry.scores), entry.inputs):
                raise ValueError(f"set {entry.name!r} has arrays of other shapes than described")
            probs, by_name = np.exp(log_probs.astype(np.float64)), dict(zip(entry.scores, scores, strict=True))
            kept = (probs.astype(np.float32), labels.astype(np.int64), by_name, shown.astype(np.int64), images)
            results.append(SetResult(entry.name, entry.tier, *kept, entry.skipped, entry.data_hash))
    return tuple(results)


def log_probabilities(probs: np.ndarray) -> np.ndarray:
    """Return ln p in float16, with the first largest entry of each row still the first largest."""
    with np.errstate(divide="ignore"):
        exact = np.log(np.clip(np.asarray(probs, np.float64), 0, 1))
    rounded = exact.astype(np.float16)
    top = np.asarray(probs).argmax(1)
    rows = np.flatnonzero(rounded.argmax(1) != top)  # a tie through rounding: lift the true one by a step
    rounded[rows, top[rows]] = np.nextafter(rounded[rows].max(1), np.float16(0))
    return rounded
