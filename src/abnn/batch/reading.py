"""The inputs of one shard, a batch at a time, in the form that a model takes; what cannot be read comes with the reason."""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from abnn.batch.plan import Shard, open_parquet
from abnn.data import InputForm, read_image
from abnn.data.images import or_reason
from abnn.data.source import ahead
from abnn.errors import InputError, explain, readable
from abnn.export.artefact import Exported

Raw = tuple[str, Any]  # the id of an input, and what it is read from: a path, bytes or text


@dataclass(frozen=True)
class Batch:
    """Some inputs of a shard in their order: ids, why each could not be read (None: it could), and those that could."""

    ids: list[str]
    errors: list[str | None]
    x: Any


Each = Callable[[Callable[[Any], Any], list[Any]], Iterable[Any]]  # as map(): one after the other, or several at once
Reader = Callable[[list[Any], Each], tuple[list[str | None], Any]]
"""From paths, bytes or texts to (why each cannot be read, the others as inputs of the model)."""


class Ahead:
    """Reads the next batch while the caller works on this one. Its threads stay: memory of threads that end is not used again.

    threads  that read at once; with one, that which reads ahead does it itself
    """

    def __init__(self, reader: Reader, threads: int) -> None:
        self.reader, self.ahead = reader, ThreadPoolExecutor(1)
        self.each: Each = map if threads == 1 else ThreadPoolExecutor(threads).map

    def batches(self, raw: Iterator[Raw], size: int) -> Iterator[Batch]:
        """Yield batches of ``size`` inputs."""
        return ahead(self._read(raw, size), self.ahead)

    def _read(self, raw: Iterator[Raw], size: int) -> Iterator[Batch]:
        while some := list(islice(raw, size)):
            ids, contents = zip(*some)
            yield Batch(list(ids), *self.reader(list(contents), self.each))


def read_raw(shard: Shard, root: str, column: str | None, id_column: str | None) -> Iterator[Raw]:
    """Yield id and content of each input of a shard; rows of a Parquet file that was changed raise an error."""
    if shard.names is not None:
        for each in shard.names:
            yield readable(os.fsdecode(each)), Path(os.fsdecode(os.path.join(os.fsencode(root), each)))
        return
    assert shard.file is not None and column is not None
    path = os.path.join(os.fsencode(root), shard.file)
    name, last = readable(os.fsdecode(shard.file)), shard.row + shard.count
    if os.stat(path).st_size != shard.size:
        fix = "Score it into another folder."
        raise InputError(explain("INPUT", f"{name}, which was changed", "the file that the job began with", fix))
    columns = [column] if id_column is None else [column, id_column]
    with open_parquet(path) as file:
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        ends = list(accumulate(sizes))
        groups = range(bisect_right(ends, shard.row), bisect_left(ends, last) + 1)
        row = ends[groups[0] - 1] if groups[0] else 0
        for batch in file.iter_batches(256, row_groups=list(groups), columns=columns):
            skipped = max(0, shard.row - row)
            part = batch.slice(skipped, max(0, last - row - skipped))
            numbers = range(row + skipped, row + skipped + len(part))
            owns = [f"{name}:{number}" for number in numbers] if id_column is None else part[id_column].to_pylist()
            for own, content in zip(owns, part[column].to_pylist()):
                yield str(own), content.get("bytes") if isinstance(content, dict) else content
            row += len(batch)
            if row >= last:
                return


def choose_column(path: bytes, column: str | None, text: bool) -> str:
    """Return the column of a Parquet file to score: the one that was named, or the only one with images (or text).

    Images are bytes, or as Hugging Face's datasets have them: {bytes, path}.
    """
    with open_parquet(path) as file:
        schema = file.schema_arrow
    fits = [field.name for field in schema if (_is_text if text else _is_image)(field.type)]
    if column in fits or (column is None and len(fits) == 1):
        return column or fits[0]
    kind = "text" if text else "image bytes"
    actual = f"{column!r}" if column is not None else f"nothing, and {len(fits)} columns with {kind}"
    fix = "Text needs --tokenizer." if column is not None and not text else "Name one with --column."
    raise InputError(explain("--column", actual, f"a column with {kind}: {', '.join(fits) or 'there is none'}", fix))


def _is_image(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_image(kind.field(place).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def image_reader(form: InputForm) -> Reader:
    """Return a reader of pictures, from paths or bytes, for a model with inputs of this form."""
    if form.kind != "images":
        raise InputError(explain("model", f"inputs of shape {form.shape}", "a model of images, or of text"))

    def read_one(content: Path | bytes | None) -> Any:
        return "no image" if content is None else or_reason(lambda: read_image(content, form.shape[0]))

    def read(contents: list[Any], each_of: Each) -> tuple[list[str | None], Any]:
        inputs = list(each_of(read_one, contents))
        errors = [each if isinstance(each, str) else None for each in inputs]
        good = [each for each in inputs if not isinstance(each, str)]
        if len({each.shape for each in good}) == 1:
            return errors, form.images(np.stack(good))
        return errors, form.join([form.images(each[None]) for each in good])

    return read


def text_reader(folder: str, model: Any) -> Reader:
    """Return a reader of texts with the tokenizer of a folder, which is never fetched.

    A model of one tensor gets token numbers, cut or filled up to its length; one of several inputs those that it was attached with.
    """
    from transformers import AutoTokenizer

    try:
        # From a folder here: nothing is fetched, so there is no revision to pin.
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)  # nosec B615
    except (OSError, ValueError) as error:
        accepted = "a folder that tokenizer.save_pretrained() wrote"
        raise InputError(explain("--tokenizer", f"{folder} ({error})", accepted)) from None
    several, form = getattr(model, "input_forms", None), "np" if isinstance(model, Exported) else "pt"
    length = model.input_shape[0] if several is None and len(model.input_shape) == 1 else None
    if isinstance(model, Exported):  # which takes any length, and says what its example had
        length = model.description.length or length

    def read(contents: list[Any], each_of: Each) -> tuple[list[str | None], Any]:
        errors = [None if isinstance(each, str) else "no text" for each in contents]
        good = [each for each in contents if isinstance(each, str)]
        if not good:
            return errors, None
        fill = "longest" if length is None else "max_length"
        tokens = tokenizer(good, return_tensors=form, truncation=True, max_length=length, padding=fill)
        if several is None:
            return errors, tokens["input_ids"]
        return errors, {name: tokens[name] for name in several if name in tokens}

    return read
