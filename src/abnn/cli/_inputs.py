"""What a user names on the command line, read a batch at a time: images, folders, patterns, arrays, standard input."""

from __future__ import annotations

import glob
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from abnn.data import ArraySource, InputForm, read_image
from abnn.data.images import EXTENSIONS, reason
from abnn.errors import InputError, explain

STDIN = "-"
STDIN_NAME = "standard input"
MOST_STDIN = 256 * 2**20
_THREADS = min(4, os.cpu_count() or 1)


class Batch(NamedTuple):
    """Inputs in the order they were named, those that could be read and those that could not with the reason."""

    names: list[str]
    x: Tensor
    unreadable: list[tuple[str, str]]


def read_inputs(texts: Iterable[str], form: InputForm, size: int) -> Iterator[Batch]:
    """Batches of at most ``size`` inputs; the next one is read while the caller works on this one."""
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(_THREADS) as pool:
        batches = _batches(expand(texts), form, size, pool)
        following = reader.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = reader.submit(next, batches, None)
            yield batch


def expand(texts: Iterable[str]) -> Iterator[str]:
    """Names of single images and .npz files, folders and patterns unfolded in sorted order; "-" stays as it is.

    A name that is nothing of that kind stays too, so that reading it can say why.
    """
    for text in texts:
        if text == STDIN or os.path.isfile(text):
            yield text
        elif os.path.isdir(text):
            yield from _below(text)
        elif glob.has_magic(text):
            found = sorted(glob.glob(text, recursive=True))
            if not found:
                raise InputError(explain("INPUT", f"the pattern {text!r}, which nothing matches", "images or folders"))
            for each in found:
                yield from _below(each) if os.path.isdir(each) else (each,)
        else:
            yield text


def _below(folder: str) -> Iterator[str]:
    """Images and arrays below a folder; hidden files and folders are left out."""
    empty = True
    for place, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith("."))
        for file in sorted(files):
            if not file.startswith(".") and Path(file).suffix.lower() in EXTENSIONS | {".npz"}:
                empty = False
                yield os.path.join(place, file)
    if empty:
        accepted = f"a folder with .npz files or images ({', '.join(sorted(EXTENSIONS))})"
        raise InputError(explain("INPUT", f"{folder}, a folder without images", accepted))


def _batches(names: Iterator[str], form: InputForm, size: int, pool: ThreadPoolExecutor) -> Iterator[Batch]:
    waiting: list[str] = []
    for name in names:
        if name.lower().endswith(".npz") and os.path.isfile(name):
            if waiting:
                yield _images(waiting, form, pool)
                waiting = []
            yield from _rows(name, form, size)
            continue
        waiting.append(name)
        if len(waiting) == size:
            yield _images(waiting, form, pool)
            waiting = []
    if waiting:
        yield _images(waiting, form, pool)


def _images(names: list[str], form: InputForm, pool: ThreadPoolExecutor) -> Batch:
    if form.kind != "images":
        fix = "Pass an .npz file with an array `features`."
        raise InputError(explain("INPUT", names[0], f"rows of {form.shape[0]} features, which this model takes", fix))
    read = list(pool.map(lambda name: _image(name, form), names))
    shown = [STDIN_NAME if name == STDIN else printable(name) for name in names]
    good = [(name, each) for name, each in zip(shown, read) if isinstance(each, Tensor)]
    bad = [(name, each) for name, each in zip(shown, read) if isinstance(each, str)]
    x = torch.cat([each for _, each in good]) if good else torch.zeros(0, *form.shape, dtype=form.dtype)
    return Batch([name for name, _ in good], x, bad)


def _rows(name: str, form: InputForm, size: int) -> Iterator[Batch]:
    source = ArraySource(name)
    source.check(form)
    for first in range(0, len(source), size):
        chunk = source.read(first, min(first + size, len(source)), form)
        names = [f"{printable(name)}[{row}]" for row in chunk.rows]
        good = torch.isfinite(chunk.x).flatten(1).all(1)
        bad = [(each, "holds NaN or infinite values") for each, fine in zip(names, good.tolist()) if not fine]
        yield Batch([each for each, fine in zip(names, good.tolist()) if fine], chunk.x[good], bad)
    source.close()


def _image(name: str, form: InputForm) -> Tensor | str:
    """The image as one input of the model, or why it cannot be read."""
    try:
        if name == STDIN:
            return form.images(_from_stdin(form.shape[0])[None])
        return form.images(read_image(Path(name), form.shape[0])[None])
    except FileNotFoundError:
        return "no such file"
    except Exception as error:  # noqa: BLE001, for Pillow's many decoders raise whatever they come across
        return reason(error)


def _from_stdin(channels: int):  # type: ignore[no-untyped-def]
    content = sys.stdin.buffer.read(MOST_STDIN + 1)
    if not content:
        raise ValueError("nothing came in")
    if len(content) > MOST_STDIN:
        raise ValueError(f"more than {MOST_STDIN >> 20} MiB came in")
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        return read_image(Path(file.name), channels)


def printable(name: str) -> str:
    """A path as text that every encoding of an output can hold; bytes that are no UTF-8 become a replacement mark."""
    return os.fsencode(name).decode("utf-8", "replace")
