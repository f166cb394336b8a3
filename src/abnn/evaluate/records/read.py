"""Read and find records, and say what is wrong with files that are none. Nothing in them is ever run."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from abnn._version import __version__
from abnn.errors import FileFormatError, InputError, explain, unknown
from abnn.evaluate.records.arrays import SetEntry
from abnn.evaluate.records.record import FORMAT, VERSION, Record
from abnn.evaluate.summary import flatten
from abnn.files import read_json


def read_record(path: str | Path) -> Record:
    """Read and check one JSON; the arrays are read when they are asked for. Nothing in either file is ever run."""
    content = read_json(Path(path))
    if not _is_record(content):
        raise FileFormatError(f"{path} is not a run record (no format {FORMAT!r}); pass a JSON written by abnn.")
    return _checked(Path(path), content)


def find_records(directory: str | Path, **filters: Any) -> list[Record]:
    """All records below ``directory`` in the order experiment, name, seed; other JSON files are passed over.

    Filters are fields of `Record` with the wanted value, or with a list of them: ``experiment="digits", seed=[0, 1]``.
    """
    directory = Path(directory)
    if not directory.is_dir():
        fix = "Pass the folder that the records were written to."
        raise InputError(explain("directory", f"{directory}, which is no folder", "an existing folder", fix))
    for name in filters:
        if name not in (known := [field.name for field in fields(Record)]):
            raise unknown("filter", name, known)
    contents = ((path, read_json(path)) for path in sorted(directory.rglob("*.json")))
    records = [_checked(path, content) for path, content in contents if _is_record(content)]
    records = [record for record in records if _matches(record, filters)]
    return sorted(records, key=lambda record: (record.experiment, record.name, record.seed, str(record.path)))


def looks_like_record(path: Path) -> bool:
    """Whether a file is a record, or too damaged to tell."""
    try:
        return _is_record(read_json(path))
    except FileFormatError:
        return True


def _is_record(content: Any) -> bool:
    return isinstance(content, dict) and content.get("format") == FORMAT


def _checked(path: Path, content: dict[str, Any]) -> Record:
    version = content.get("version")
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise FileFormatError(
            f"{path} has version {version!r} of the format, this abnn ({__version__}) reads 1 to {VERSION}; update abnn."
        )
    try:
        return _from_json(path, content)
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path} is a damaged run record ({error!r}); restore it, or run the experiment again."
        ) from None


def _from_json(path: Path, content: dict[str, Any]) -> Record:
    def get(name: str, kind: type | tuple[type, ...], source: dict[str, Any] = content) -> Any:
        if not isinstance(source[name], kind) or isinstance(source[name], bool):
            raise TypeError(f"{name} is a {type(source[name]).__name__}")
        return source[name]

    def entry(item: dict[str, Any]) -> SetEntry:
        scores, skipped = (tuple(str(text) for text in get(field, list, item)) for field in ("scores", "skipped"))
        name, tier, data_hash = (get(field, str, item) for field in ("name", "tier", "data_hash"))
        return SetEntry(name, tier, get("inputs", int, item), scores, skipped, data_hash)

    def pair(thresholds: list[float | None]) -> tuple[float, float]:
        notice, reject = (float("inf") if each is None else float(each) for each in thresholds)
        return notice, reject

    thresholds = content["thresholds"]
    for where, number in flatten(get("metrics", dict)).items():
        if not isinstance(number, int | float) or not np.isfinite(number):
            raise ValueError(f"metrics.{where} is {number!r}")
    texts = ("experiment", "name", "score", "device", "written", "platform", "arrays_file", "arrays_sha256")
    if Path(get("arrays_file", str)).name != content["arrays_file"]:  # of "" it is ""
        raise ValueError(f"arrays_file {content['arrays_file']!r} is not a plain file name")
    return Record(
        path=path,
        **{name: get(name, str) for name in texts},
        **{name: get(name, dict) for name in ("config", "metrics", "seconds", "versions", "code")},
        seed=get("seed", int),
        thresholds=None if thresholds is None else pair(thresholds),
        sets=tuple(entry(item) for item in get("sets", list)),
        class_thresholds=tuple(pair(each) for each in content.get("class_thresholds", ())),
    )


def _matches(record: Record, filters: dict[str, Any]) -> bool:
    for name, wanted in filters.items():
        value = getattr(record, name)
        choices = list(wanted) if isinstance(wanted, list | set | frozenset | range) else [wanted]
        if value not in choices:
            return False
    return True
