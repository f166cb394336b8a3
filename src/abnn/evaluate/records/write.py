"""Write a record: the arrays first, then the JSON that names them, then away with the arrays of its predecessor."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.evaluation import Evaluation, Thresholds
from abnn.evaluate.provenance import provenance
from abnn.evaluate.records.arrays import SetEntry, pack, unpack
from abnn.evaluate.records.paths import record_path
from abnn.evaluate.records.record import FORMAT, VERSION, Summary
from abnn.evaluate.summary import summarise
from abnn.files import as_json, read_json, write_bytes, write_json


def write_record(
    evaluation: Evaluation,
    directory: str | Path,
    experiment: str,
    device: str = "cpu",
    *,
    images: bool = True,
    arrays: bool = True,
    summary: Summary = summarise,
) -> Path:
    """Write one run and return the path of its JSON. A record of the same experiment, name and seed is replaced.

    images   keep the pictures
    arrays   without them the record keeps the numbers of the evaluation's own score alone: it is small, and can be read
             and tabulated but not recomputed
    summary  computes the numbers
    """
    if not evaluation.sets:
        raise InputError(explain("sets", "none", "at least one set, each with a name of its own"))
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
    for stale in path.parent.glob(f"{path.stem}.{'[0-9a-f]' * 12}.npz"):
        if stale != file or not arrays:
            stale.unlink(missing_ok=True)
    return path


def _to_json(thresholds: Thresholds) -> list[float | None]:
    """null stands for infinity, see :class:`abnn.evaluate.records.record.Record`."""
    notice, reject = (float(each) for each in thresholds)
    if not -np.inf < notice <= reject:
        raise InputError(explain("thresholds", f"({notice}, {reject})", "two numbers, notice <= reject"))
    return [each if np.isfinite(each) else None for each in (notice, reject)]


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
