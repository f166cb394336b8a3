"""One run as its JSON describes it, with the way back to its arrays and from them to its numbers."""

from __future__ import annotations

import hashlib
import lzma
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from abnn.errors import FileFormatError
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records.arrays import SetEntry, unpack
from abnn.evaluate.summary import Numbers, flatten, summarise

FORMAT = "abnn-record"
VERSION = 1


class NoArraysError(FileFormatError):
    """A record that keeps the numbers alone."""


@dataclass(frozen=True)
class Record:
    """One run.

    code              commit of the checkout that the package ran from and whether its files were changed; empty elsewhere
    thresholds        (notice, reject); infinity where nothing is ever refused
    class_thresholds  the same for each predicted class, in their place; () if there are none
    """

    path: Path
    experiment: str
    name: str
    seed: int
    score: str
    config: dict[str, Any]
    thresholds: tuple[float, float] | None
    sets: tuple[SetEntry, ...]
    metrics: Numbers
    device: str
    seconds: dict[str, float]
    written: str
    versions: dict[str, str]
    platform: str
    code: dict[str, Any]
    arrays_file: str
    arrays_sha256: str
    class_thresholds: tuple[tuple[float, float], ...] = ()

    @cached_property
    def numbers(self) -> dict[str, float]:
        """All metrics by path, such as "tiers.ordered_triples"."""
        return flatten(self.metrics)

    @property
    def arrays_path(self) -> Path:
        return self.path.parent / self.arrays_file

    def evaluation(self) -> Evaluation:
        """What the model said, from the arrays, after their hash was checked."""
        if not self.arrays_file:
            raise NoArraysError(
                f"{self.path} was written without its arrays; only its numbers are known. Run the experiment again to have "
                "them."
            )
        try:
            content = self.arrays_path.read_bytes()
        except FileNotFoundError:
            raise FileFormatError(
                f"{self.arrays_path}, which {self.path} names, does not exist; restore it, or run the experiment again."
            ) from None
        if hashlib.sha256(content).hexdigest() != self.arrays_sha256:
            raise FileFormatError(
                f"{self.arrays_path} is not the file that {self.path} was written with (another sha256); it is damaged "
                "or was exchanged: restore it, or run the experiment again."
            )
        try:
            sets = unpack(content, self.sets)
        except (
            KeyError,
            ValueError,
            TypeError,
            OSError,
            EOFError,
            zipfile.BadZipFile,
            lzma.LZMAError,
            zlib.error,
        ) as e:
            raise FileFormatError(
                f"{self.arrays_path} does not hold the arrays that {self.path} describes ({e!r}); restore both files "
                "from one run, or run the experiment again."
            ) from None
        limits = self.thresholds, self.class_thresholds
        return Evaluation(self.name, self.score, sets, limits[0], self.seed, self.config, self.seconds, limits[1])

    def recompute(self) -> Numbers:
        """All metrics again, from the arrays alone."""
        return summarise(self.evaluation())


def disagreements(record: Record, tolerance: float = 1e-9) -> dict[str, tuple[float, float | None]]:
    """Numbers that differ when recomputed: by path, as recorded and as recomputed (None if it is no longer defined).

    On the machine that wrote a record all numbers are equal; another processor may add in another order, hence the
    tolerance. Metrics that this version has and the record has not are no disagreement.
    """
    again = flatten(record.recompute())

    def same(path: str, value: float) -> bool:
        return path in again and abs(again[path] - value) <= tolerance * max(1.0, abs(value))

    return {path: (value, again.get(path)) for path, value in record.numbers.items() if not same(path, value)}
