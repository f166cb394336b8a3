"""What a job has to score, fixed before it begins: a list of shards, each some inputs that are scored and written together.

The plan is written once, so that a job that starts again has the same shards even if files were added to its input. Nothing
here holds all names at once: they go from the listing to the plan, a few thousand at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from abnn.data.images import EXTENSIONS
from abnn.errors import FileFormatError, InputError, explain
from abnn.files import walk

PARQUET = ".parquet"
ACCEPTED = "a folder, a Parquet file, or a text file with the name of an image in each line"
AT_ONCE = 2**15  # inputs whose names are held in memory
MOST_PARTS = 16  # of one row group of a Parquet file: each part reads past those before it
SCHEMA = pa.schema(
    {
        "count": pa.int64(),
        "names": pa.list_(pa.binary()),  # of files to score; paths are bytes, and not always UTF-8
        "file": pa.binary(),  # or a Parquet file,
        "size": pa.int64(),  # its bytes, by which a change is noticed,
        "row": pa.int64(),  # and the first of its rows
    }
)


@dataclass(frozen=True)
class Shard:
    """Inputs that are scored by one worker and written as one file; see ``SCHEMA``."""

    count: int
    names: list[bytes] | None = None
    file: bytes | None = None
    size: int = 0
    row: int = 0


@dataclass(frozen=True)
class Listing:
    """What a user named as input: "files" (a folder or a list of them) or "parquet", and the folder that names start at."""

    kind: str
    root: str
    names: Iterable[bytes]


def list_inputs(text: str) -> Listing:
    """Return what ``text`` names: a folder of images or of Parquet files, one Parquet file, or a text file with a name per line.

    Raise an error for anything else, and for a folder with nothing in it.
    """
    path = Path(text)
    if path.is_dir():
        found = _below(path)
        first = next(found, None)
        if first is None:
            accepted = f"images ({', '.join(sorted(EXTENSIONS))}) or Parquet files in it"
            raise InputError(explain("INPUT", f"{text}, a folder without images", accepted))
        kind = "parquet" if _is_parquet(first) else "files"
        return Listing(kind, str(path.absolute()), _of_one_kind(path, kind, chain([first], found)))
    if not path.is_file():
        raise InputError(explain("INPUT", f"{text}, which is no file and no folder", ACCEPTED))
    if path.suffix.lower() == PARQUET:
        return Listing("parquet", str(path.absolute().parent), [os.fsencode(path.name)])
    with open(path, "rb") as file:
        if b"\0" in file.read(2**16):  # which no name of a file has: an image, or arrays, and not a list of names
            fix = "For one image, or an .npz file, use abnn predict."
            raise InputError(explain("INPUT", f"{text}, which is no text", ACCEPTED, fix))
    return Listing("files", os.getcwd(), _lines(path))


def write_plan(path: Path, listing: Listing, size: int) -> None:
    """Write the plan of a job as one Parquet file with shards of about ``size`` inputs. It is not flushed to disk."""
    shards = _parquet_shards(listing, size) if listing.kind == "parquet" else _file_shards(listing.names, size)
    with pq.ParquetWriter(path, SCHEMA) as writer:
        while some := list(islice(shards, per_group(size))):
            writer.write_table(pa.Table.from_pylist([vars(shard) for shard in some], SCHEMA))


def per_group(size: int) -> int:
    """Return how many shards of ``size`` inputs a row group of the plan has."""
    return max(1, AT_ONCE // size)


def read_counts(path: Path) -> list[int]:
    """Return how many inputs each shard of a plan has."""
    return pq.read_table(path, columns=["count"])["count"].to_pylist()


def read_shard(path: Path, number: int, size: int) -> Shard:
    """Return one shard of a plan that was made with this ``size``."""
    group, place = divmod(number, per_group(size))
    with pq.ParquetFile(path) as file:
        return Shard(**file.read_row_group(group).slice(place, 1).to_pylist()[0])


def _is_parquet(name: bytes) -> bool:
    return name.lower().endswith(PARQUET.encode())


def _below(folder: Path) -> Iterator[bytes]:
    """Yield images and Parquet files below a folder in a fixed order; hidden ones and those that begin with _ are left out."""
    start = os.fsencode(folder)
    for place, names in walk(start, b".", b"_"):
        for file in names:
            suffix = os.path.splitext(file)[1].lower().decode("ascii", "replace")
            if suffix in EXTENSIONS | {PARQUET}:
                yield os.path.relpath(os.path.join(place, file), start)


def _of_one_kind(folder: Path, kind: str, names: Iterable[bytes]) -> Iterator[bytes]:
    for name in names:
        if _is_parquet(name) != (kind == "parquet"):
            fix = "Name a folder that holds the ones or the others, or list files in a text file."
            raise InputError(explain("INPUT", f"{folder}, with images and Parquet files", "one of the two", fix))
        yield name


def _lines(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from (name for line in file if (name := line.rstrip(b"\r\n")))


def _file_shards(names: Iterable[bytes], size: int) -> Iterator[Shard]:
    remaining = iter(names)
    while some := list(islice(remaining, size)):
        yield Shard(len(some), some)


def _parquet_shards(listing: Listing, size: int) -> Iterator[Shard]:
    for name in listing.names:
        path = os.path.join(os.fsencode(listing.root), name)
        with open_parquet(path) as file:
            groups = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        for row, count in _cuts(groups, size):
            yield Shard(count, None, name, os.stat(path).st_size, row)


def _cuts(groups: Iterable[int], size: int) -> Iterator[tuple[int, int]]:
    """Yield first row and number of rows of each shard: small row groups together, large ones in parts."""
    start = end = 0
    for rows in groups:
        if end > start and end + rows - start > size:
            yield start, end - start
            start = end
        if rows > size:
            part = max(size, -(-rows // MOST_PARTS))
            yield from ((end + first, min(part, rows - first)) for first in range(0, rows, part))
            start = end + rows
        end += rows
    if end > start:
        yield start, end - start


def open_parquet(path: bytes) -> pq.ParquetFile:
    """Return an open Parquet file that is read a little at a time; what is none raises an error that names it."""
    text = os.fsdecode(path)
    try:
        return pq.ParquetFile(text, buffer_size=2**20, pre_buffer=False)
    except (OSError, pa.ArrowException) as error:
        raise FileFormatError(f"INPUT: {text} is no readable Parquet file ({error}).") from None
