"""Run records: one JSON per run with every number and where it came from, and beside it the arrays to recompute them.

``<directory>/<experiment>/<name>-seed<seed>.json`` holds configuration, seed, versions, commit, data hashes, device,
times and all metrics. The ``.npz`` beside it holds what the model said about every input; its name contains its hash, so
a record that is written again never shares a file with its predecessor, and a reader sees the old record or the new one.
The metrics of a record are computed from the arrays as stored, so that recomputing them gives the same numbers. Nothing in
a file is ever run.
"""

from __future__ import annotations

import hashlib
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict
from pydantic.dataclasses import dataclass

from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.arrays import SetEntry, pack, unpack
from abnn.evaluate.evaluation import Evaluation, Thresholds
from abnn.evaluate.provenance import provenance
from abnn.evaluate.summary import Numbers, flatten, summarise
from abnn.files import as_json, check_regular, check_version, only, parse, read_json, write_bytes, write_json

FORMAT = "abnn-record"
VERSION = 1
FIX = "Restore it, or run the experiment again."


def _check_finite(metrics: Numbers) -> Numbers:
    for where, number in flatten(metrics).items():
        if not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
            raise ValueError(f"finite numbers, but metrics.{where} is {number!r}")
    return metrics


# JSON has no infinity, so null stands for it: "nothing is ever above this".
Limit = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]
Pair = tuple[Limit, Limit]


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Record:
    """One run."""

    path: Path
    experiment: str
    name: str
    seed: int
    score: str
    config: dict[str, Any]
    thresholds: Pair | None  # (notice, reject); infinity where nothing is ever refused
    sets: tuple[SetEntry, ...]
    metrics: Annotated[Numbers, AfterValidator(_check_finite)]
    device: str
    seconds: dict[str, float]
    written: str
    versions: dict[str, str]
    platform: str
    code: dict[str, Any]  # commit of the package's own checkout, and whether its files were changed; else empty
    arrays_file: Annotated[str, only(lambda name: Path(name).name == name, "a plain file name")]  # "": no arrays
    arrays_sha256: str
    class_thresholds: tuple[Pair, ...] = ()  # for each predicted class, in the place of ``thresholds``

    @cached_property
    def numbers(self) -> dict[str, float]:
        """All metrics by path, such as "tiers.ordered_triples"."""
        return flatten(self.metrics)

    @property
    def arrays_path(self) -> Path:
        return self.path.parent / self.arrays_file

    def evaluation(self) -> Evaluation:
        """Return what the model said, from the arrays, after their hash was checked."""
        if not self.arrays_file:
            raise FileFormatError(f"{self.path} was written without its arrays; run the experiment again to have them.")
        try:
            content = check_regular(self.arrays_path).read_bytes()
            if hashlib.sha256(content).hexdigest() != self.arrays_sha256:
                raise ValueError("another sha256")
            sets, limits = unpack(content, self.sets), (self.thresholds, self.class_thresholds)
            return Evaluation(self.name, self.score, sets, limits[0], self.seed, self.config, self.seconds, limits[1])
        except Exception as error:  # noqa: BLE001 - zipfile and numpy's parser of headers raise many kinds on damaged files
            missing = isinstance(error, FileNotFoundError)
            fault = "does not exist" if missing else f"does not hold the arrays that it describes ({error!r})"
            raise FileFormatError(
                f"{self.arrays_path}, which {self.path} names, {fault}; restore both files from one run, or run the "
                "experiment again."
            ) from None


def record_path(directory: str | Path, experiment: str, name: str, seed: int) -> Path:
    """Return the path of the record of a run."""
    return Path(directory) / slug(experiment) / f"{slug(name)}-seed{seed}.json"


def slug(name: str) -> str:
    """Return a name in lower-case ASCII, for files; where letters are lost, a hash of all of it keeps names apart."""
    plain = unicodedata.normalize("NFKD", name)
    short = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    lost = any(character.isalnum() and not character.isascii() for character in plain)
    if short and not lost:
        return short
    return f"{short or 'run'}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def read_record(path: str | Path) -> Record:
    """Return the record of one JSON, checked; the arrays are read when they are asked for."""
    content = read_json(Path(path))
    if not is_record(content):
        raise FileFormatError(f"{path} is not a run record (no format {FORMAT!r}); pass a JSON written by abnn.")
    return _parse(Path(path), content)


def find_records(
    directory: str | Path,
    experiment: str | None = None,
    name: str | Collection[str] | None = None,
    seed: int | Collection[int] | None = None,
) -> list[Record]:
    """Return all records below ``directory`` in the order experiment, name, seed; other JSON is passed over.

    experiment, name, seed  only records with this value, or with one of these; None: all
    """
    directory = Path(directory)
    if not directory.is_dir():
        fix = "Pass the folder that the records were written to."
        raise InputError(explain("directory", f"{directory}, which is no folder", "an existing folder", fix))
    choices = [(each,) if isinstance(each, str | int) else each for each in (experiment, name, seed)]
    keyed = {}
    contents = ((path, read_json(path)) for path in sorted(directory.rglob("*.json")))
    for record in (_parse(path, content) for path, content in contents if is_record(content)):
        key = (record.experiment, record.name, record.seed, str(record.path))
        if all(choice is None or value in choice for value, choice in zip(key, choices)):
            keyed[key] = record
    return [keyed[key] for key in sorted(keyed)]


def is_record(content: Any) -> bool:
    """Return whether what a JSON file holds calls itself a run record."""
    return isinstance(content, dict) and content.get("format") == FORMAT


def _parse(path: Path, content: dict[str, Any]) -> Record:
    check_version(path, content, VERSION)
    return parse(Record, {**content, "path": str(path)}, f"{path} is a damaged run record: ", FIX)


def write_record(
    evaluation: Evaluation,
    directory: str | Path,
    experiment: str,
    device: str = "cpu",
    *,
    images: bool = True,
    arrays: bool = True,
    summary: Callable[..., Numbers] = summarise,
) -> Path:
    """Write one run and return the path of its JSON. A record of the same experiment, name and seed is replaced.

    images   keep the pictures
    arrays   without them the record keeps the numbers of the evaluation's own score alone: it is small, and can be read
             and tabulated but not recomputed
    summary  computes the numbers; called with the evaluation and ``by_score``, as :func:`summarise`
    """
    path = record_path(directory, experiment, evaluation.name, evaluation.seed)
    _refuse_other_run(path, experiment, evaluation.name)

    content = pack(evaluation.sets, images)
    digest = hashlib.sha256(content).hexdigest()
    entries = tuple(SetEntry.of(each) for each in evaluation.sets)
    stored = replace(evaluation, sets=unpack(content, entries))
    file = path.with_name(f"{path.stem}.{digest[:12]}.npz")
    record = {
        "format": FORMAT,
        "version": VERSION,
        "experiment": experiment,
        "name": evaluation.name,
        "seed": int(evaluation.seed),
        "score": evaluation.score,
        "config": as_json("config", evaluation.config),
        "thresholds": None if stored.thresholds is None else _to_json(stored.thresholds),
        "sets": [asdict(entry) for entry in entries],
        "metrics": summary(stored, by_score=arrays),
        "device": device,
        "seconds": as_json("seconds", evaluation.seconds),
        **provenance(),
        "arrays_file": file.name if arrays else "",
        "arrays_sha256": digest,
    }
    if stored.class_thresholds:
        record["class_thresholds"] = [_to_json(each) for each in stored.class_thresholds]
    had_arrays = file.exists()
    try:
        if arrays:
            write_bytes(file, content)
        write_json(path, record)
    except BaseException:
        if arrays and not had_arrays:
            file.unlink(missing_ok=True)
        raise
    for stale in path.parent.glob(f"{path.stem}.{'[0-9a-f]' * 12}.npz"):  # the arrays of its predecessor
        if stale != file or not arrays:
            stale.unlink(missing_ok=True)
    return path


def _to_json(thresholds: Thresholds) -> list[float | None]:
    return [float(each) if math.isfinite(each) else None for each in thresholds]


def _refuse_other_run(path: Path, experiment: str, name: str) -> None:
    """A file that holds another run is not replaced; one that is damaged is."""
    try:
        content = read_json(path)
        identity = content["experiment"], content["name"]
    except (FileFormatError, KeyError, TypeError):
        return
    if identity != (experiment, name):
        fault = f"{name!r} in {experiment!r}, whose file {path} holds {identity[1]!r} in {identity[0]!r}"
        fix = "Names that differ only in signs and capitals share a file; choose another one."
        raise InputError(explain("name", fault, "a name of its own for each model", fix))
