"""Arrays in ``.npz`` files: ``images`` (uint8) with ``labels``, or ``features`` with ``target``.

Arrays are read from the archive as a stream, compressed or not, so a file may be far larger than memory. Nothing in a file
is ever run: arrays of Python objects are refused.
"""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from abnn.data.form import InputForm
from abnn.data.source import Chunk, Source
from abnn.errors import FileFormatError, InputError, explain

LABELS = {"images": "labels", "features": "target"}
_DAMAGED = (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
_WINDOW = 1024
T = TypeVar("T")


class ArraySource(Source):
    """The pictures or features of one ``.npz`` file.

    class_names  of the labels; None: those in the file's array ``names``, if it has one
    factor       that pictures are multiplied with, for files that hold 0 and 1
    """

    def __init__(
        self,
        path: str | Path,
        name: str | None = None,
        class_names: tuple[str, ...] | None = None,
        factor: int = 1,
    ) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        self.factor = factor
        members = self._guard(self._members)
        self.kind = next((kind for kind in LABELS if kind in members), "")
        if not self.kind:
            given = f"an archive with {', '.join(sorted(members)) or 'nothing'}"
            raise InputError(explain(str(self.path), given, "arrays `images` or `features`, with `labels` or `target`"))
        self.fingerprint = _fingerprint(self.path, members)
        self._stream: _Rows | None = None
        rows = self._guard(lambda: _Rows(self.path, self.kind))
        rows.close()
        self.row_shape, self.dtype = rows.shape[1:], rows.dtype
        self._check_rows(rows.shape)
        self.labels = self._labels(rows.shape[0], LABELS[self.kind] in members)
        self.class_names = class_names or self._names("names" in members)
        if self.kind == "images":
            self._check_range()

    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        rows = self.raw(first, last)
        x = form.images(rows) if self.kind == "images" else form.features(rows)
        return Chunk(x, np.arange(first, last), last)

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        near = np.split(rows, np.flatnonzero(np.diff(rows // _WINDOW)) + 1)  # read at once what lies close together
        values = np.concatenate([self.raw(int(some[0]), int(some[-1]) + 1)[some - some[0]] for some in near])
        x = form.images(values) if self.kind == "images" else form.features(values)
        return Chunk(x, rows, int(rows[-1]) + 1)

    def raw(self, first: int, last: int) -> np.ndarray:
        """The rows as they are in the file."""

        def rows() -> np.ndarray:
            if self._stream is None or self._stream.position > first:
                self.close()
                self._stream = _Rows(self.path, self.kind)
            return self._stream.read(first, last)

        values = self._guard(rows)
        return values * np.uint8(self.factor) if self.factor != 1 else values

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def check(self, form: InputForm) -> None:
        super().check(form)
        if self.kind == "features" and self.row_shape != form.shape:
            given = f"{self.row_shape[0]} features for each input"
            raise InputError(explain(f"source {self.name!r}", given, f"{form.shape[0]}, as the model was made for"))

    def _guard(self, read: Callable[[], T]) -> T:
        """Reads, and says which file is at fault where that fails."""
        try:
            return read()
        except FileNotFoundError:
            raise InputError(explain("source", f"{self.path}, which does not exist", "an .npz file")) from None
        except (InputError, FileFormatError):
            raise
        except _DAMAGED as error:
            raise FileFormatError(
                f"{self.path} cannot be read ({error}); it is damaged, cut short or no .npz: write it again with "
                "numpy.savez(path, images=..., labels=...)."
            ) from None

    def _members(self) -> dict[str, zipfile.ZipInfo]:
        with zipfile.ZipFile(self.path) as archive:
            return {each.filename.removesuffix(".npy"): each for each in archive.infolist()}

    def _check_rows(self, shape: tuple[int, ...]) -> None:
        given = f"{self.dtype} of shape {shape}"
        if self.kind == "images":
            good = len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
            if not good or self.dtype != np.uint8:
                fix = "Scale to 0..255, move channels last, and save as uint8."
                raise InputError(explain(f"images of {self.path}", given, "uint8 [N, H, W] or [N, H, W, 1 or 3]", fix))
        elif len(shape) != 2 or self.dtype.kind not in "fiu":
            raise InputError(explain(f"features of {self.path}", given, "numbers [N, D]"))
        if 0 in shape:
            raise InputError(explain(f"{self.kind} of {self.path}", given, "at least one input, none of them empty"))

    def _labels(self, count: int, given: bool) -> np.ndarray:
        if not given:
            return np.full(count, -1, np.int64)
        what = LABELS[self.kind]
        labels = self._whole(what)
        if labels.shape != (count,):
            accepted = f"shape ({count},), one for each input"
            raise InputError(explain(f"{what} of {self.path}", f"shape {labels.shape}", accepted))
        if labels.dtype.kind not in "iu":
            fix = f"For a model of classes; leave `{what}` out if the inputs have none."
            raise InputError(explain(f"{what} of {self.path}", str(labels.dtype), "whole numbers, the classes", fix))
        return labels.astype(np.int64)

    def _names(self, given: bool) -> tuple[str, ...] | None:
        return tuple(str(name) for name in self._whole("names")) if given else None

    def _whole(self, name: str) -> np.ndarray:
        def array() -> np.ndarray:
            with np.load(self.path, allow_pickle=False) as arrays:
                return arrays[name]

        return self._guard(array)

    def _check_range(self) -> None:
        """Pictures of 0 and 1 in 8 bits would all be black for the model."""
        if self.raw(0, min(len(self), 64)).max() == 1:
            fix = "Multiply them by 255."
            raise InputError(explain(f"images of {self.path}", "values of 0 and 1 only", "values from 0 to 255", fix))


class _Rows:
    """One array of an archive as a stream of rows."""

    def __init__(self, path: Path, name: str) -> None:
        self.archive = zipfile.ZipFile(path)
        try:
            self.file: IO[bytes] = self.archive.open(f"{name}.npy")
            self.shape, self.dtype = _header(self.file, path, name)
        except BaseException:
            self.archive.close()
            raise
        self.start = self.file.tell()
        self.row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize
        self.position = 0

    def read(self, first: int, last: int) -> np.ndarray:
        if first != self.position:
            self.file.seek(self.start + first * self.row_bytes)
        wanted = (last - first) * self.row_bytes
        content = self.file.read(wanted)
        if len(content) < wanted:
            raise EOFError(f"it ends within row {first + len(content) // self.row_bytes}")
        self.position = last
        return np.frombuffer(bytearray(content), self.dtype).reshape(last - first, *self.shape[1:])

    def close(self) -> None:
        self.file.close()
        self.archive.close()


def _header(file: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"array {name} has version {version} of the format")
    shape, by_columns, dtype = readers[version](file)
    if by_columns and len(shape) > 1:
        fix = "Save numpy.ascontiguousarray(array) instead."
        raise InputError(explain(f"{name} of {path}", "an array in Fortran order", "rows one after another", fix))
    return shape, dtype


def _fingerprint(path: Path, members: dict[str, zipfile.ZipInfo]) -> str:
    """Path, time and size of the file, and the checksums that the archive holds of its arrays."""
    stat = path.stat()
    facts = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    facts += [(name, each.CRC, each.file_size) for name, each in sorted(members.items())]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
