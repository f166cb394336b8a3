"""Saved folders: a JSON description and tensors, complete or absent, with a checksum of everything that decides.

A folder is written whole or not at all. Its description holds the sha256 of every other file, and one over its own fields: what
was damaged, changed or mixed with the files of another model is refused, by the name of the file. Loading never runs code.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from abnn import files
from abnn._version import __version__
from abnn.errors import AbnnWarning, FileFormatError
from abnn.files import check_regular, left_behind, read_json, seal

if TYPE_CHECKING:
    from torch import Tensor, nn

FIX = "The folder is damaged or was changed: restore it, or save the model again."
LEARNT = ("closed_form.", "combined.")  # how the names of tensors begin that a fit learns beside attachments
OTHER_METHOD = (
    "It was fitted by an earlier version, with another method, and cannot be converted: attach to the same backbone and fit again, "
    "with abnn.attach() and abnn.fit(), or with abnn fit."
)
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Strict(BaseModel):
    """No unknown fields, no text in the place of numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Description(Strict):
    """The JSON file of a saved folder; its kinds are in :mod:`abnn.store.schema` and :mod:`abnn.export.schema`.

    EARLIER  what to do with folders of versions before OLDEST
    SEALED   the first version whose folders have checksums
    files    sha256 of every other file of the folder, by its name
    digest   sha256 of all fields but this one. Folders of older versions have neither
    """

    FILE: ClassVar[str]
    WHAT: ClassVar[str] = "a saved model"
    FORMAT: ClassVar[str]
    OLDEST: ClassVar[int]
    NEWEST: ClassVar[int]
    SEALED: ClassVar[int]
    EARLIER: ClassVar[str] = "Fit the model again and save it."
    PARTS: ClassVar[tuple[str, ...]]

    format: str
    version: int
    abnn: str
    files: dict[str, Digest] = {}
    digest: Digest | None = None


Kind = TypeVar("Kind", bound=Description)


def write_folder(
    path: str | Path,
    kind: type[Description],
    fields: Mapping[str, Any],
    parts: Mapping[str, Mapping[str, Tensor] | bytes],
) -> Path:
    """Write the folder ``path`` and return it; only one of the same kind is replaced.

    fields  of the description, all that ``kind`` has beside format, version and checksums
    parts   tensors, or bytes, by the name of their file
    """
    path = Path(path)
    files.check_replaceable(path, kind.FILE, kind.WHAT)
    files.check_writable("path", path.parent, folder=True)
    description = {**fields, "format": kind.FORMAT, "version": kind.NEWEST, "abnn": __version__}
    files.parse(kind, description, f"{path}: ", "It could not be loaded again.")
    with files.writing_directory(path) as folder:
        for name, content in parts.items():
            if isinstance(content, bytes):
                files.write_bytes(folder / name, content)
            else:
                from abnn.tensors import write_tensors

                write_tensors(folder / name, dict(content))
        description["files"] = {name: file_digest(folder / name) for name in parts}
        files.write_json(folder / kind.FILE, seal(description))
    return path


def read_folder(path: str | Path, kind: type[Kind]) -> Kind:
    """Return the description of the folder ``path``, after all checks; its tensors are then what was saved.

    Folders of versions without checksums are read with a warning.
    """
    path = Path(path)
    file = path / kind.FILE
    if not file.exists():
        accepted = f"accepted: a folder that save() wrote, with {kind.FILE} in it.{left_behind(path)}"
        raise FileFormatError(f"path: {path} is not {kind.WHAT}; {accepted}")
    values = read_json(file)
    if not isinstance(values, dict) or values.get("format") != kind.FORMAT:
        raise FileFormatError(f"path: {file} is not the description of {kind.WHAT}; save it again.")
    files.check_version(path, values, kind.NEWEST, kind.OLDEST, kind.EARLIER)
    description: Kind = files.parse(kind, values, f"{path}: ", FIX)
    if description.digest is None and description.version < kind.SEALED and not description.files:
        saved = f"{path} was saved by abnn {description.abnn}, without checksums"
        unknown = "whether its files belong together is not known. Save the model again."
        warnings.warn(f"{saved}: {unknown}", AbnnWarning, stacklevel=3)
        return description
    if description.digest != seal(values)["digest"]:
        raise FileFormatError(f"{file} was changed since it was saved. {FIX}")
    for part in (path / name for name in kind.PARTS):
        if part.exists() and description.files.get(part.name) != file_digest(part):
            raise FileFormatError(
                f"{part} is not the file that was saved with {kind.FILE}: one of another model? {FIX}"
            )
    return description


def check_tensors(
    path: Path,
    saved: Mapping[str, Tensor],
    own: Mapping[str, Tensor],
    finite: Container[str] | None = None,
    fix: str = FIX,
) -> None:
    """Refuse other names, shapes or types than those of ``own``, and NaN: copying would hide it.

    Any precision will do. ``finite`` names the tensors that must hold finite numbers beside what a fit learns of the data;
    None: all.
    """
    if any(name.startswith("distance.") for name in saved.keys() - own.keys()):
        raise FileFormatError(f"{path}: {OTHER_METHOD}")
    if saved.keys() != own.keys():
        odd = ", ".join(sorted(saved.keys() ^ own.keys())[:4])
        raise FileFormatError(f"{path}: tensors {odd} are missing or not expected. {fix}")
    for name, value in saved.items():
        right, statistic, problem = own[name], name.startswith(LEARNT), ""
        if value.shape != right.shape:
            problem = f"{name} has shape {tuple(value.shape)}; accepted: {tuple(right.shape)}"
        elif value.dtype != right.dtype and not (value.is_floating_point() and right.is_floating_point()):
            accepted = "a floating-point type" if right.is_floating_point() else right.dtype
            problem = f"{name} is of type {value.dtype}; accepted: {accepted}"
        elif (finite is None or name in finite or statistic) and not value.isfinite().all():
            problem = f"NaN or infinite values in {name}: the file is damaged, or the fit diverged"
        if problem:
            raise FileFormatError(f"{path}: {problem}. {fix}")


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
    from abnn.tensors import tensor_digest

    return tensor_digest(network.state_dict())
