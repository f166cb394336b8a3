"""Saved folders: a JSON description and tensors, complete or absent, with a checksum of everything that decides.

A folder is written whole or not at all. Its description holds the sha256 of every other file, and one over its own fields: what
was damaged, changed or mixed with the files of another model is refused, by the name of the file. Loading never runs code.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from abnn._version import __version__
from abnn.errors import AbnnWarning, FileFormatError
from abnn.files import (
    check_regular,
    check_replaceable,
    parse,
    read_description,
    seal,
    tensor_digest,
    write_json,
    write_tensors,
    writing_directory,
)
from abnn.store.schema import Description

FIX = "The folder is damaged or was changed: restore it, or save the model again."
Kind = TypeVar("Kind", bound=Description)


def write_folder(
    path: str | Path, kind: type[Description], fields: Mapping[str, Any], parts: Mapping[str, Mapping[str, Tensor]]
) -> Path:
    """Write the folder ``path`` and return it; only one of the same kind is replaced.

    fields  of the description, all that ``kind`` has beside format, version and checksums
    parts   tensors by the name of their file
    """
    path = Path(path)
    check_replaceable(path, kind.FILE, f"is not {kind.WHAT}", kind.WHAT)
    description = {**fields, "format": kind.FORMAT, "version": kind.NEWEST, "abnn": __version__}
    parse(kind, description, f"{path}: ", "It could not be loaded again.")
    with writing_directory(path) as folder:
        for name, tensors in parts.items():
            write_tensors(folder / name, dict(tensors))
        description["files"] = {name: file_digest(folder / name) for name in parts}
        write_json(folder / kind.FILE, seal(description))
    return path


def read_folder(path: str | Path, kind: type[Kind]) -> Kind:
    """Return the description of the folder ``path``, after all checks; its tensors are then what was saved.

    Folders of versions without checksums are read with a warning.
    """
    path = Path(path)
    values = read_description(path / kind.FILE, kind.WHAT, kind.FORMAT, kind.NEWEST, kind.OLDEST)
    description: Kind = parse(kind, values, f"{path}: ", FIX)
    if description.digest is None and description.version < kind.NEWEST and not description.files:
        warnings.warn(
            f"{path} was saved by abnn {description.abnn}, without checksums: whether its files belong together is not known. "
            "Save the model again.",
            AbnnWarning,
            stacklevel=3,
        )
        return description
    if description.digest != seal(values)["digest"]:
        raise FileFormatError(f"{path / kind.FILE} was changed since it was saved. {FIX}")
    for name in kind.PARTS:
        file = path / name
        if file.exists() and description.files.get(name) != file_digest(file):
            raise FileFormatError(
                f"{file} is not the file that was saved with {kind.FILE}: one of another model? {FIX}"
            )
    return description


def check_tensors(
    path: Path,
    saved: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    finite: Container[str] | None = None,
    fix: str = FIX,
) -> None:
    """Refuse other names, shapes or types than those of ``own``, NaN, and quantiles that fall: copying would hide it.

    Any precision will do. ``finite`` names the tensors that must hold finite numbers beside statistics; None: all.
    """
    if saved.keys() != own.keys():
        odd = ", ".join(sorted(saved.keys() ^ own.keys())[:4])
        raise FileFormatError(f"{path}: tensors {odd} are missing or not expected. {fix}")
    for name, value in saved.items():
        right, statistic = own[name], name.startswith("distance.")
        if value.shape != right.shape:
            raise FileFormatError(
                f"{path}: {name} has shape {tuple(value.shape)}; accepted: {tuple(right.shape)}. {fix}"
            )
        if value.dtype != right.dtype and not (value.is_floating_point() and right.is_floating_point()):
            accepted = "a floating-point type" if right.is_floating_point() else right.dtype
            raise FileFormatError(f"{path}: {name} is of type {value.dtype}; accepted: {accepted}. {fix}")
        if (finite is None or name in finite or statistic) and not value.isfinite().all():
            raise FileFormatError(
                f"{path}: NaN or infinite values in {name}: the file is damaged, or the fit diverged. {fix}"
            )
        if statistic and name.endswith("quantiles") and (value.diff() < 0).any():
            numbers = ", ".join(f"{number:.4g}" for number in value.tolist())
            raise FileFormatError(f"{path}: {name} are {numbers}; accepted: numbers that do not fall. {fix}")


def file_digest(path: Path) -> str:
    """Return the sha256 of a file; one that cannot be read is an error that names it."""
    digest = hashlib.sha256()
    try:
        with open(check_regular(path), "rb") as content:
            while block := content.read(2**20):
                digest.update(block)
    except OSError as error:
        raise FileFormatError(f"{path} cannot be read ({error}). {FIX}") from None
    return digest.hexdigest()


def fingerprint(network: nn.Module) -> str:
    """Return the sha256 over names, shapes, types and bytes of all parameters and buffers."""
    return tensor_digest(network.state_dict())
