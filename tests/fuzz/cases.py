"""One case: change an example, read it under watch, and say what came of it."""

from __future__ import annotations

import hashlib
import json
import random
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from abnn.errors import AbnnError, AbnnWarning
from abnn.networks.by_name import build_backbone
from abnn.serve.images import decode
from abnn.serve.problems import Problem
from abnn.store.folder import seal
from tests.fuzz import mutate
from tests.fuzz.mutate import Files
from tests.fuzz.subjects import Subject, pictures, read_picture, write_files
from tests.fuzz.watch import Violation, watching

EXTENSIONS = ("png", "jpg", "jpeg", "bmp", "gif", "webp", "tif", "tiff", "ppm", "pgm", "pbm")


class Failure(AssertionError):
    """A case that did what no case may do."""


def generator(kind: str, seed: int, number: int) -> random.Random:
    """Return the random state of one case."""
    return random.Random(f"{kind}/{seed}/{number}")


# -- files ------------------------------------------------------------------------------------------------------------


def change(rng: random.Random, subject: Subject) -> tuple[str, Files, bool]:
    """Return what was done, the changed files, and whether checksums were made to fit, as an attacker would."""
    files, action = dict(subject.files), rng.random()
    name = rng.choice(sorted(files))
    if action < 0.35:
        return f"bytes of {name}", {**files, name: mutate.mutate_bytes(rng, files[name])}, False
    if action < 0.45:
        return "files", mutate.mutate_files(rng, files), False
    sealed = subject.description is not None and rng.random() < 0.6
    if name.endswith(".json"):
        files[name] = mutate.mutate_json_text(rng, files[name])
    elif name.endswith(".safetensors"):
        files[name] = mutate.mutate_tensors(rng, files[name])
    elif name.endswith(".onnx"):
        files[name] = mutate.mutate_onnx(rng, files[name])
    else:
        files[name] = mutate.mutate_bytes(rng, files[name])
    if sealed and subject.description is not None:
        files = reseal(files, subject.description)
    return f"{'sealed ' if sealed else ''}values of {name}", files, sealed


def reseal(files: Files, description: str) -> Files:
    """Return the files with checksums that fit, where the description still is an object."""
    try:
        values = json.loads(files[description])
    except (ValueError, RecursionError):
        return files
    if not isinstance(values, dict):
        return files
    parts = {name: content for name, content in files.items() if name.endswith((".safetensors", ".onnx"))}
    values["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in parts.items()}
    return {**files, description: json.dumps(seal(values)).encode()}


def run_files(rng: random.Random, subject: Subject, expected: Any, folder: Path) -> str:
    """Read a changed example and return "same", "refused", "warned" or "taken"; what must not happen is a Failure.

    expected  what is read from the unchanged example
    folder    where the files are written
    """
    what, files, sealed = change(rng, subject)
    write_files(folder, files)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome, value = attempt(lambda: subject.read(folder), folder, f"{subject.name}, {what}")
    if outcome == "refused" or value == expected:
        return outcome
    if subject.exact and not sealed:
        if any(issubclass(each.category, AbnnWarning) for each in caught):
            return "warned"
        if subject.description is None and not any(
            b'"digest"' in each for each in files.values() if isinstance(each, bytes)
        ):
            return "taken"  # as a version before checksums wrote it
        raise Failure(f"{subject.name}, {what}: read without an error, and other than it was written")
    return "taken"


def attempt(read: Callable[[], Any], folder: Path, what: str) -> tuple[str, Any]:
    """Return ("same", value) or ("refused", None)."""
    try:
        with watching(folder):
            return "same", read()
    except AbnnError as error:
        if not str(error).strip():
            raise Failure(f"{what}: an error without a word") from error
        return "refused", None
    except (Exception, Violation) as error:
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        raise Failure(f"{what}: {type(error).__name__}: {error!s:.300}\n{where}") from error


# -- pictures ---------------------------------------------------------------------------------------------------------


def run_picture(rng: random.Random, folder: Path) -> str:
    """Read a changed picture from a folder and as a request would hold it; return "same", "refused" or "taken"."""
    kind, content = rng.choice(pictures())
    damaged = content if rng.random() < 0.05 else mutate.mutate_bytes(rng, content)
    write_files(folder, {f"x.{rng.choice(EXTENSIONS)}": damaged})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, (_, unreadable) = attempt(lambda: read_picture(folder), folder, f"{kind} in a folder")
        _, problem = attempt(lambda: _decode(damaged), folder, f"{kind} in a request")
    if problem is not None and not (400 <= problem.status < 500 and problem.message):
        raise Failure(f"{kind} in a request: status {problem.status}, {problem.message!r}")
    return "refused" if unreadable and problem is not None else "same" if damaged == content else "taken"


def _decode(content: bytes) -> Problem | None:
    try:
        decode(content, 1, 1_000_000)
    except Problem as problem:
        return problem
    return None


def warm_up() -> None:
    """Let Pillow and torchvision import what they import once, which no case is to blame for."""
    Image.init()
    for name in ("resnet18", "timm/resnet18"):
        build_backbone(name, 2)
