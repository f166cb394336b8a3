"""Arrays in ``.npz`` files: ``images`` (uint8) with ``labels``, or ``features`` with ``target``; and arrays in memory.

A file is read as a stream, so it may be far larger than memory. Nothing in it is ever run: arrays of Python objects are refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from abnn.data.form import InputForm
from abnn.data.source import Chunk, Source
from abnn.errors import AbnnError, FileFormatError, InputError, explain
from abnn.files import check_regular

LABELS = {"images": "labels", "features": "target"}
WINDOW = 1024
"""Rows that lie this close together are read at once; others alone, for a rare class must not fill the memory."""
AT_ONCE = 2**28
"""Bytes that are unpacked at once; an array that needs more and is compressed below a hundredth is refused as a bomb."""


class MemorySource(Source):
    """Pictures [N, H, W] or [N, H, W, 1 or 3], uint8 of 0..255 or floats in [0, 1], with their labels."""

    kind = "images"

    def __init__(
        self, pictures: np.ndarray, labels: np.ndarray, name: str, class_names: tuple[str, ...] | None = None
    ) -> None:
        self.pictures, self.labels, self.name, self.class_names = pictures, labels, name, class_names
        self.fingerprint = hashlib.sha256(np.ascontiguousarray(pictures).tobytes() + labels.tobytes()).hexdigest()

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        return Chunk(form.images(self.pictures[rows]), rows, int(rows[-1]) + 1)


class ArraySource(Source):
    """The pictures or features of one ``.npz`` file; its array ``names`` says what the labels mean, or ``class_names``."""

    def __init__(self, path: str | Path, name: str | None = None, class_names: tuple[str, ...] | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.stem
        self._stream: _Rows | None = None
        with self._reading(), zipfile.ZipFile(check_regular(self.path)) as archive, np.load(self.path) as arrays:
            self.kind = next((kind for kind in LABELS if kind in arrays), "")
            _check_sizes(self.path, archive)
            if not self.kind:
                accepted = "arrays `images` or `features`, with `labels` or `target`"
                actual = f"an archive with {', '.join(sorted(arrays)) or 'nothing'}"
                raise InputError(explain(str(self.path), actual, accepted))
            self.fingerprint = _fingerprint(self.path, archive)
            rows = _Rows(self.path, self.kind)
            self._check_rows(rows)
            self.row_shape, self.row_bytes = rows.shape[1:], rows.row_bytes
            self.labels = self._labels(len(rows), arrays.get(LABELS[self.kind]))
            names = self._names(arrays.get("names"))
        self.class_names = class_names or names
        if self.kind == "images" and self.raw(0, min(len(self), 64)).max() == 1:  # all black for the model
            actual, fix = "values of 0 and 1 only", "Multiply them by 255."
            raise InputError(explain(f"images of {self.path}", actual, "values from 0 to 255", fix))

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        window = min(WINDOW, max(1, AT_ONCE // self.row_bytes))
        near = np.split(rows, np.flatnonzero(np.diff(rows // window)) + 1)
        values = (self.raw(int(some[0]), int(some[-1]) + 1)[some - some[0]] for some in near)
        convert = form.images if self.kind == "images" else form.features
        return Chunk(form.join([convert(some) for some in values]), rows, int(rows[-1]) + 1)

    def raw(self, first: int, last: int) -> np.ndarray:
        """Return rows as they are in the file."""
        with self._reading():
            if self._stream is None or self._stream.position > first:
                self.close()
                self._stream = _Rows(self.path, self.kind)  # opened again, so that checksums are compared again, too
            return self._stream.read(first, last)

    def close(self) -> None:
        """Close the file; reading opens it again."""
        if self._stream is not None:
            self._stream.file.close()
            self._stream = None

    def check(self, form: InputForm) -> None:
        super().check(form)
        if self.kind == "features" and self.row_shape != form.shape:
            actual = f"{self.row_shape[0]} features for each input"
            raise InputError(explain(f"source {self.name!r}", actual, f"{form.shape[0]}, as the model was made for"))

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Say which file is at fault where reading fails."""
        try:
            yield
        except FileNotFoundError:
            raise InputError(explain("source", f"{self.path}, which does not exist", "an .npz file")) from None
        except AbnnError:
            raise
        except Exception as error:  # noqa: BLE001 - zipfile and numpy's parser of headers raise many kinds on damaged files
            raise FileFormatError(
                f"{self.path} cannot be read ({error}); it is damaged, cut short or no .npz: write it again with "
                "numpy.savez(path, images=..., labels=...)."
            ) from None

    def _check_rows(self, rows: _Rows) -> None:
        shape, actual = rows.shape, f"{rows.dtype} of shape {rows.shape}"
        if self.kind == "images":
            usable = rows.dtype == np.uint8 and (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3)))
            accepted = "uint8 [N, H, W] or [N, H, W, 1 or 3]"
            fix = "Scale to 0..255, move channels last, save as uint8."
        else:
            usable, accepted, fix = len(shape) == 2 and rows.dtype.kind in "fiu", "numbers [N, D]", ""
        by_rows = "rows one after another: numpy.ascontiguousarray(array)"
        for good, required, advice in (
            (usable, accepted, fix),
            (not rows.by_columns, by_rows, ""),
            (0 not in shape, "at least one input, none of them empty", ""),
            (rows.row_bytes <= AT_ONCE, f"inputs of at most {AT_ONCE >> 20} MiB", ""),
        ):
            if not good:
                raise InputError(explain(f"{self.kind} of {self.path}", actual, required, advice))
        if rows.size < rows.start + len(rows) * rows.row_bytes:  # else a header of few bytes could ask for any memory
            raise EOFError(f"it ends within row {(rows.size - rows.start) // rows.row_bytes}")

    def _labels(self, count: int, labels: np.ndarray | None) -> np.ndarray:
        if labels is None:
            return np.full(count, -1, np.int64)
        argument = f"{LABELS[self.kind]} of {self.path}"
        if labels.shape != (count,):
            raise InputError(explain(argument, f"shape {labels.shape}", f"shape ({count},), one for each input"))
        if labels.dtype.kind not in "iu":
            fix = f"For a model of classes; leave `{LABELS[self.kind]}` out if the inputs have none."
            raise InputError(explain(argument, str(labels.dtype), "whole numbers, the classes", fix))
        return labels.astype(np.int64)

    def _names(self, names: np.ndarray | None) -> tuple[str, ...] | None:
        if names is None:
            return None
        if names.ndim != 1:
            actual = f"an array of shape {names.shape}"
            raise InputError(explain(f"names of {self.path}", actual, "one row of names, one for each class"))
        return tuple(map(str, np.char.decode(names, "utf-8") if names.dtype.kind == "S" else names))


class _Rows:
    """One array of an archive as a stream of rows."""

    def __init__(self, path: Path, name: str) -> None:
        with zipfile.ZipFile(path) as archive:  # an open member keeps the file open until it is closed itself
            self.file = archive.open(f"{name}.npy")
            self.size = archive.getinfo(f"{name}.npy").file_size
        version = np.lib.format.read_magic(self.file)
        if version > (2, 0):
            raise ValueError(f"array {name} has version {version} of the format")
        form = np.lib.format
        read_header = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        self.shape, fortran, self.dtype = read_header(self.file)
        self.by_columns = fortran and len(self.shape) > 1
        self.start, self.position = self.file.tell(), 0
        self.row_bytes = int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def read(self, first: int, last: int) -> np.ndarray:
        if first != self.position:
            self.file.seek(self.start + first * self.row_bytes)
        size = (last - first) * self.row_bytes
        content = self.file.read(size)
        if len(content) < size:
            raise EOFError(f"it ends within row {first + len(content) // self.row_bytes}")
        self.position = last
        return np.frombuffer(bytearray(content), self.dtype).reshape(last - first, *self.shape[1:])


def _check_sizes(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse arrays that would unpack to far more than is there, before any of them is read."""
    for each in archive.infolist():
        if each.file_size > AT_ONCE and each.file_size > 100 * each.compress_size:
            sizes = f"{each.file_size >> 20:,} MiB packed into {each.compress_size >> 10:,} kB"
            fix = "It looks like a bomb; if it is not, save it with numpy.savez, uncompressed."
            raise InputError(explain(f"{each.filename} of {path}", sizes, "at most a hundredfold", fix))


def _fingerprint(path: Path, archive: zipfile.ZipFile) -> str:
    """Return a hash over path, time and size of the file, and the checksums that the archive holds of its arrays."""
    stat = path.stat()
    facts = [str(path.resolve()), stat.st_size, stat.st_mtime_ns]
    members = {each.filename.removesuffix(".npy"): each for each in archive.infolist()}
    facts += [(name, each.CRC, each.file_size) for name, each in sorted(members.items())]
    return hashlib.sha256(repr(facts).encode()).hexdigest()
