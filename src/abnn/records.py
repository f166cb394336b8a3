"""Run records: one JSON per run with every number and where it came from, and beside it the arrays to recompute them.

``<directory>/<experiment>/<name>-seed<seed>.json`` holds configuration, seed, versions, commit, data hashes, device,
times and all metrics. The ``.npz`` beside it holds what the model said about every input; its name contains its hash, so
a record that is written again never shares a file with its predecessor, and a reader sees the old record or the new one.

Probabilities are stored as their logarithms in float16: every -log p, so also the NLL, is right to a relative 2^-11 for
small probabilities and for those close to one alike, where float16 probabilities would round to 0 and 1. The order
"first largest" is kept, so predictions and accuracy are exact. The metrics of a record are computed from the arrays as
stored, so that recomputing them gives the same numbers.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import json
import lzma
import os
import platform
import re
import subprocess
import unicodedata
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from abnn._version import __version__
from abnn.errors import FileFormatError, InputError, explain, unknown
from abnn.evaluation import Evaluation, SetResult
from abnn.files import read_json, write_bytes, write_json
from abnn.summary import Numbers, flatten, summarise

FORMAT = "abnn-record"
VERSION = 1
PACKAGES = ("torch", "numpy", "scikit-learn", "lightning-fabric", "torchmetrics", "safetensors", "torchvision", "timm")
FLOAT32_BITS = 24


class NoArraysError(FileFormatError):
    """A record that keeps the numbers alone."""


@dataclass(frozen=True)
class SetEntry:
    """One set as the JSON describes it; its arrays are in the ``.npz``."""

    name: str
    tier: str
    inputs: int
    scores: tuple[str, ...]
    skipped: tuple[str, ...]
    data_hash: str


@dataclass(frozen=True)
class Record:
    """One run.

    code        commit of the checkout that the package ran from and whether its files were changed; empty elsewhere
    thresholds  (notice, reject); infinity where nothing is ever refused
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
            raise NoArraysError(f"{self.path} was written without its arrays; only its numbers are known.")
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
            sets = _unpack(content, self.sets)
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
        return Evaluation(self.name, self.score, sets, self.thresholds, self.seed, self.config, self.seconds)

    def recompute(self) -> Numbers:
        """All metrics again, from the arrays alone."""
        return summarise(self.evaluation())


def write_record(
    evaluation: Evaluation,
    directory: str | Path,
    experiment: str,
    device: str = "cpu",
    *,
    images: bool = True,
    score_bits: int = FLOAT32_BITS,
    arrays: bool = True,
) -> Path:
    """Write one run and return the path of its JSON. A record of the same experiment, name and seed is replaced.

    ``images=False`` leaves the pictures out. ``score_bits`` rounds scores to fewer significant bits than the 24 of
    float32, which makes files smaller: 16 bits keep a relative 2^-17, and can make neighbouring scores equal but never
    exchange them. ``arrays=False`` keeps the numbers alone, of the evaluation's own score: such a record is small, and
    can be read and tabulated but not recomputed.
    """
    if not isinstance(score_bits, int) or not 8 <= score_bits <= FLOAT32_BITS:
        raise InputError(explain("score_bits", repr(score_bits), f"a whole number from 8 to {FLOAT32_BITS}"))
    if len({each.name for each in evaluation.sets}) < len(evaluation.sets) or not evaluation.sets:
        given = ", ".join(repr(each.name) for each in evaluation.sets) or "none"
        raise InputError(explain("sets", given, "at least one set, each with a name of its own", "Rename one of them."))
    path = record_path(directory, experiment, evaluation.name, evaluation.seed)
    _refuse_other_run(path, experiment, evaluation.name)

    content = _pack(evaluation.sets, images, score_bits)
    digest = hashlib.sha256(content).hexdigest()
    entries = tuple(_entry(each) for each in evaluation.sets)
    stored = replace(evaluation, sets=_unpack(content, entries))
    file = path.with_name(f"{path.stem}.{digest[:12]}.npz")
    record = {
        "format": FORMAT,
        "version": VERSION,
        "experiment": experiment,
        "name": evaluation.name,
        "seed": int(evaluation.seed),
        "score": evaluation.score,
        "config": _as_json("config", evaluation.config),
        "thresholds": _thresholds_out(evaluation.thresholds),
        "sets": [{**vars(entry), "scores": list(entry.scores), "skipped": list(entry.skipped)} for entry in entries],
        "metrics": summarise(stored, by_score=arrays),
        "device": device,
        "seconds": _as_json("seconds", evaluation.seconds),
        **provenance(),
        "arrays_file": file.name if arrays else "",
        "arrays_sha256": digest,
    }
    known = file.exists()
    try:
        if arrays:
            write_bytes(file, content)
        write_json(path, record)
    except BaseException:
        if arrays and not known:
            file.unlink(missing_ok=True)
        raise
    for stale in path.parent.glob(f"{path.stem}.{'[0-9a-f]' * 12}.npz"):
        if stale != file or not arrays:
            stale.unlink(missing_ok=True)
    return path


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


def disagreements(record: Record, tolerance: float = 1e-9) -> dict[str, tuple[float, float | None]]:
    """Numbers that differ when recomputed: by path, as recorded and as recomputed (None if it is no longer defined).

    On the machine that wrote a record all numbers are equal; another processor may add in another order, hence the
    tolerance. Metrics that this version has and the record has not are no disagreement.
    """
    again = flatten(record.recompute())

    def same(path: str, value: float) -> bool:
        return path in again and abs(again[path] - value) <= tolerance * max(1.0, abs(value))

    return {path: (value, again.get(path)) for path, value in record.numbers.items() if not same(path, value)}


def record_path(directory: str | Path, experiment: str, name: str, seed: int) -> Path:
    """Where the record of a run is, for anyone who knows what the run was."""
    return Path(directory) / slug(experiment) / f"{slug(name)}-seed{seed}.json"


def slug(name: str) -> str:
    """Lower-case ASCII for file names; where letters are lost, a hash of the whole name keeps names apart."""
    plain = unicodedata.normalize("NFKD", name)
    short = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    lost = any(character.isalnum() and not character.isascii() for character in plain)
    if short and not lost:
        return short
    return f"{short or 'run'}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


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


def log_probabilities(probs: np.ndarray) -> np.ndarray:
    """log p in float16, with the first largest entry of each row still the first largest."""
    with np.errstate(divide="ignore"):
        exact = np.log(np.clip(np.asarray(probs, np.float64), 0, 1))
    rounded = exact.astype(np.float16)
    top = np.asarray(probs).argmax(1)
    rows = np.flatnonzero(rounded.argmax(1) != top)  # a tie through rounding: lift the true one by a step
    rounded[rows, top[rows]] = np.nextafter(rounded[rows].max(1), np.float16(0))
    return rounded


def _pack(sets: Collection[SetResult], images: bool, score_bits: int) -> bytes:
    """An ``.npz`` as `numpy.load` reads it; equal arrays give equal bytes. LZMA is a seventh smaller than deflate here."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for number, each in enumerate(sets):
            for name, values in each.scores.items():
                if not np.isfinite(values).all():
                    fix = "Find out why the model gave NaN or infinity there."
                    raise InputError(explain(f"scores[{name!r}] of {each.name!r}", "values not finite", "numbers", fix))
            scores = [round_bits(values, score_bits) for values in each.scores.values()]
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


def _unpack(content: bytes, entries: Collection[SetEntry]) -> tuple[SetResult, ...]:
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


def _entry(each: SetResult) -> SetEntry:
    return SetEntry(each.name, each.tier, len(each), tuple(each.scores), tuple(each.skipped), each.data_hash)


def _as_json(argument: str, value: Any) -> Any:
    """The value as it will be read back (tuples become lists)."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        accepted = "dicts, lists, strings, finite numbers, booleans and None"
        raise InputError(explain(argument, f"something that JSON cannot hold ({error})", accepted)) from None


def _thresholds_out(thresholds: tuple[float, float] | None) -> list[float | None] | None:
    """JSON has no infinity, so null stands for it: "nothing is ever above this"."""
    if thresholds is None:
        return None
    notice, reject = (float(each) for each in thresholds)
    if not -np.inf < notice <= reject:
        raise InputError(explain("thresholds", f"({notice}, {reject})", "two numbers, notice <= reject"))
    return [each if np.isfinite(each) else None for each in (notice, reject)]


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

    thresholds = content["thresholds"]
    if thresholds is not None:
        notice, reject = (float("inf") if each is None else float(each) for each in thresholds)
        thresholds = (notice, reject)
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
        thresholds=thresholds,
        sets=tuple(entry(item) for item in get("sets", list)),
    )


def _matches(record: Record, filters: dict[str, Any]) -> bool:
    for name, wanted in filters.items():
        value = getattr(record, name)
        choices = list(wanted) if isinstance(wanted, list | set | frozenset | range) else [wanted]
        if value not in choices:
            return False
    return True


def _refuse_other_run(path: Path, experiment: str, name: str) -> None:
    """A file that holds another run is not replaced; one that is damaged is."""
    try:
        content = read_json(path)
        identity = content["experiment"], content["name"]
    except (FileFormatError, KeyError, TypeError):
        return
    if identity != (experiment, name):
        given = f"{name!r} in {experiment!r}, whose file {path} holds {identity[1]!r} in {identity[0]!r}"
        fix = "Names that differ only in signs and capitals share a file; choose another one."
        raise InputError(explain("name", given, "a name of its own for each model", fix))


def provenance() -> dict[str, Any]:
    """Where a result comes from: when it was written, versions, platform and code."""
    return {
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "code": _code(),
    }


def _versions() -> dict[str, str]:
    versions = {"abnn": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _code() -> dict[str, Any]:
    """Commit and state of the package's own files, if they are tracked by git; a repository around an install is not it."""
    here = Path(__file__).resolve().parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=environment).stdout

    try:
        git("ls-files", "--error-unmatch", "_version.py")
        return {
            "commit": git("rev-parse", "HEAD").strip(),
            "dirty": bool(git("status", "--porcelain", "--", ".").strip()),
        }
    except (OSError, subprocess.SubprocessError):
        return {}
