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
from typing import Any

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
        """What the JSON says about a set."""
        return cls(each.name, each.tier, len(each), tuple(each.scores), tuple(each.skipped), each.data_hash)


def pack(sets: Collection[SetResult], images: bool) -> bytes:
    """An ``.npz`` as `numpy.load` reads it; equal arrays give equal bytes. LZMA is a seventh smaller than deflate here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for number, each in enumerate(sets):
            for name, values in each.scores.items():
                if not np.isfinite(values).all():
                    fix = "Find out why the model gave NaN or infinity there."
                    raise InputError(explain(f"scores[{name!r}] of {each.name!r}", "values not finite", "numbers", fix))
            scores = [np.asarray(values, np.float32) for values in each.scores.values()]
            arrays = {
                "log_probs": log_probabilities(each.probs),
                "labels": np.asarray(each.labels, np.int32),
                "scores": np.stack(scores) if scores else np.zeros((0, len(each)), np.float32),
                "shown": np.asarray(each.shown if images else each.shown[:0], np.int32),
                "images": np.asarray(each.images if images else each.images[:0], np.uint8),
            }
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{number}/{name}.npy", (1980, 1, 1, 0, 0, 0))
                member.compress_type = zipfile.ZIP_LZMA
                member.external_attr = 0o644 << 16
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def unpack(content: bytes, entries: Collection[SetEntry]) -> tuple[SetResult, ...]:
    """The sets that :func:`pack` packed, as ``entries`` describe them; raises whatever numpy raises on other content."""
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return tuple(_unpack_set(arrays, number, entry) for number, entry in enumerate(entries))


def _unpack_set(arrays: Any, number: int, entry: SetEntry) -> SetResult:
    log_probs, labels, scores, shown, images = (
        arrays[f"{number}/{name}"] for name in ("log_probs", "labels", "scores", "shown", "images")
    )
    if log_probs.ndim != 2 or len(log_probs) != entry.inputs or scores.shape != (len(entry.scores), entry.inputs):
        raise ValueError(f"set {entry.name!r} has arrays of other shapes than described")
    return SetResult(
        name=entry.name,
        tier=entry.tier,
        probs=np.exp(log_probs.astype(np.float64)).astype(np.float32),
        labels=labels.astype(np.int64),
        scores=dict(zip(entry.scores, scores, strict=True)),
        shown=shown.astype(np.int64),
        images=images,
        skipped=entry.skipped,
        data_hash=entry.data_hash,
    )


def log_probabilities(probs: np.ndarray) -> np.ndarray:
    """log p in float16, with the first largest entry of each row still the first largest."""
    with np.errstate(divide="ignore"):
        exact = np.log(np.clip(np.asarray(probs, np.float64), 0, 1))
    rounded = exact.astype(np.float16)
    top = np.asarray(probs).argmax(1)
    rows = np.flatnonzero(rounded.argmax(1) != top)  # a tie through rounding: lift the true one by a step
    rounded[rows, top[rows]] = np.nextafter(rounded[rows].max(1), np.float16(0))
    return rounded
