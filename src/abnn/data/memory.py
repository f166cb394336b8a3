"""Pictures that are in memory already."""

from __future__ import annotations

import hashlib

import numpy as np

from abnn.data.form import InputForm
from abnn.data.source import Chunk, Source


class MemorySource(Source):
    """Pictures [N, H, W] or [N, H, W, 1 or 3], uint8 of 0..255 or floats in [0, 1], with their labels."""

    kind = "images"

    def __init__(
        self, pictures: np.ndarray, labels: np.ndarray, name: str, class_names: tuple[str, ...] | None = None
    ) -> None:
        self.pictures, self.labels, self.name, self.class_names = pictures, labels, name, class_names
        digest = hashlib.sha256(np.ascontiguousarray(pictures).tobytes())
        digest.update(labels.tobytes())
        self.fingerprint = digest.hexdigest()

    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        return Chunk(form.images(self.pictures[first:last]), np.arange(first, last), last)
