"""One run as its JSON describes it: reading and finding records, and the way back to their arrays and numbers.

Nothing in a file is ever run.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import math
import sys
import zipfile
import zlib
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from abnn._version import __version__
from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records.arrays import SetEntry, unpack
from abnn.evaluate.summary import Numbers, flatten, summarise
from abnn.files import check_regular, read_json

FORMAT = "abnn-record"
VERSION = 1
Summary = Callable[..., Numbers]
"""Computes all numbers of an evaluation; called with it and with ``by_score``, as :func:`summarise`."""


class NoArraysError(FileFormatError):
    """A record that keeps the numbers alone."""


def _check_finite(metrics: Numbers) -> Numbers:
    for where, number in flatten(metrics).items():
        if not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise ValueError(f"metrics.{where} is {number!r}")
    return metrics


def _check_plain(name: str) -> str:
    if Path(name).name != name:  # of "" it is ""
        raise ValueError(f"{name!r} is not a plain file name")
    return name


# JSON has no infinity, so null stands for it: "nothing is ever above this".
Limit = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]
Pair = tuple[Limit, Limit]


@dataclass(frozen=True, config=ConfigDict(strict=True))
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
    thresholds: Pair | None
    sets: tuple[SetEntry, ...]
    metrics: Annotated[Numbers, AfterValidator(_check_finite)]
    device: str
    seconds: dict[str, float]
    written: str
    versions: dict[str, str]
    platform: str
    code: dict[str, Any]
    arrays_file: Annotated[str, AfterValidator(_check_plain)]
    arrays_sha256: str
    class_thresholds: tuple[Pair, ...] = ()

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
            raise NoArraysError(f"{self.path} was written without its arrays; run the experiment again to have them.")
        broken_archive = (OSError, EOFError, zipfile.BadZipFile, lzma.LZMAError, zlib.error)
        try:
            content = check_regular(self.arrays_path).read_bytes()
            if hashlib.sha256(content).hexdigest() != self.arrays_sha256:
                raise ValueError("another sha256")
            if any(self.score not in each.scores for each in self.sets):
                raise ValueError(f"no score {self.score!r:.80}")
            sets = unpack(content, self.sets)
        except (KeyError, ValueError, TypeError, *broken_archive) as error:
            missing = isinstance(error, FileNotFoundError)
            fault = "does not exist" if missing else f"does not hold the arrays that it describes ({error!r})"
            raise FileFormatError(
                f"{self.arrays_path}, which {self.path} names, {fault}; restore both files from one run, or run the "
                "experiment again."
            ) from None
        limits = self.thresholds, self.class_thresholds
        return Evaluation(self.name, self.score, sets, limits[0], self.seed, self.config, self.seconds, limits[1])

    def recompute(self, summary: Summary = summarise) -> Numbers:
        """All metrics again, from the arrays alone."""
        return summary(self.evaluation())


def read_record(path: str | Path) -> Record:
    """Read and check one JSON; the arrays are read when they are asked for."""
    content = read_json(Path(path))
    if not is_record(content):
        raise FileFormatError(f"{path} is not a run record (no format {FORMAT!r}); pass a JSON written by abnn.")
    return _parse(Path(path), content)


def find_records(
    directory: str | Path,
    experiment: str | Collection[str] | None = None,
    name: str | Collection[str] | None = None,
    seed: int | Collection[int] | None = None,
) -> list[Record]:
    """All records below ``directory`` in the order experiment, name, seed; other JSON files are passed over.

    experiment, name, seed  only records with this value, or with one of these; None: all
    """
    directory = Path(directory)
    if not directory.is_dir():
        fix = "Pass the folder that the records were written to."
        raise InputError(explain("directory", f"{directory}, which is no folder", "an existing folder", fix))
    choices = [
        None if choice is None else [choice] if isinstance(choice, str | int) else list(choice)
        for choice in (experiment, name, seed)
    ]
    contents = ((path, read_json(path)) for path in sorted(directory.rglob("*.json")))
    keyed = {}
    for record in (_parse(path, content) for path, content in contents if is_record(content)):
        key = (record.experiment, record.name, record.seed, str(record.path))
        if all(choice is None or value in choice for choice, value in zip(choices, key)):
            keyed[key] = record
    return [keyed[key] for key in sorted(keyed)]


def is_record(content: Any) -> bool:
    """Whether what a JSON file holds calls itself a run record."""
    return isinstance(content, dict) and content.get("format") == FORMAT


_RECORD = TypeAdapter(Record)


def _parse(path: Path, content: dict[str, Any]) -> Record:
    version = content.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise FileFormatError(
            f"{path} has version {version!r} of the format, this abnn ({__version__}) reads 1 to {VERSION}; update abnn."
        )
    try:  # as JSON, because strict checks take a list for a tuple only there
        return _RECORD.validate_json(json.dumps({**content, "path": str(path)}))
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise FileFormatError(
            f"{path} is a damaged run record ({faults}); restore it, or run the experiment again."
        ) from None
