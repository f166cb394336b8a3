"""What a user names on the command line, read a batch at a time: images, folders, patterns, arrays, standard input."""

from __future__ import annotations

import contextlib
import glob
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from abnn.data import ArraySource, InputForm
from abnn.data.images import EXTENSIONS, read_input
from abnn.data.source import ahead
from abnn.errors import InputError, explain, readable
from abnn.files import walk

STDIN = "-"
MOST_STDIN = 256 * 2**20
_THREADS = min(4, os.cpu_count() or 1)


class Batch(NamedTuple):
    """Inputs in the order they were named, those that could be read and those that could not with the reason."""

    names: list[str]
    x: Any
    unreadable: list[tuple[str, str]]


def list_names(inputs: list[str], from_file: str | None) -> Iterator[str]:
    """Yield what was named on the command line, then the lines of a file; standard input may be asked for once."""
    if not inputs and from_file is None:
        accepted = "images, folders, patterns, .npz files, - for an image on standard input, or --from-file"
        raise InputError(explain("INPUT", "nothing", accepted))
    if inputs.count(STDIN) + (from_file == STDIN) > 1:
        raise InputError(explain("INPUT", "standard input twice", "- once, as an input or with --from-file"))
    if from_file not in (None, STDIN) and not os.path.isfile(str(from_file)):
        raise InputError(explain("--from-file", f"{from_file}, which is no file", "a file with one name per line"))
    if STDIN in (*inputs, from_file):
        standard_input()

    def lines() -> Iterator[str]:
        yield from inputs
        if from_file is not None:
            with contextlib.nullcontext(standard_input()) if from_file == STDIN else open(from_file, "rb") as file:
                yield from (os.fsdecode(name) for line in file if (name := line.rstrip(b"\r\n")))

    return lines()


def standard_input() -> BinaryIO:
    if sys.stdin is None or sys.stdin.closed:
        raise InputError(explain("INPUT", "standard input, which is closed", "an open one", "Pipe something into it."))
    return sys.stdin.buffer


def read_inputs(texts: Iterable[str], form: InputForm, size: int) -> Iterator[Batch]:
    """Yield batches of at most ``size`` inputs; the next one is read while the caller works on this one."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from ahead(_batches(expand(texts), form, size, pool))


def expand(texts: Iterable[str]) -> Iterator[str]:
    """Yield names of single images and .npz files, folders and patterns unfolded in sorted order; "-" stays as it is.

    A name that is nothing of that kind stays too, so that reading it can say why.
    """
    for text in texts:
        places = [text]
        if text != STDIN and not os.path.exists(text) and glob.has_magic(text):
            places = sorted(glob.glob(text, recursive=True))
            if not places:
                raise InputError(explain("INPUT", f"the pattern {text!r}, which nothing matches", "images or folders"))
        for place in places:
            yield from _below(place) if os.path.isdir(place) and place != STDIN else (place,)


def _below(folder: str) -> Iterator[str]:
    """Yield images and arrays below a folder; hidden files and folders are left out."""
    empty = True
    for place, names in walk(folder, "."):
        for file in names:
            if Path(file).suffix.lower() in EXTENSIONS | {".npz"}:
                empty = False
                yield os.path.join(place, file)
    if empty:
        accepted = f"a folder with .npz files or images ({', '.join(sorted(EXTENSIONS))})"
        raise InputError(explain("INPUT", f"{folder}, a folder without images", accepted))


def _batches(names: Iterator[str], form: InputForm, size: int, pool: ThreadPoolExecutor) -> Iterator[Batch]:
    for arrays, some in groupby(names, lambda name: name.lower().endswith(".npz") and os.path.isfile(name)):
        if arrays:
            for name in some:
                yield from _rows(name, form, size)
        else:
            while images := list(islice(some, size)):
                yield _images(images, form, pool)


def _images(names: list[str], form: InputForm, pool: ThreadPoolExecutor) -> Batch:
    if form.kind != "images":
        fix = "Pass an .npz file with an array `features`."
        raise InputError(explain("INPUT", names[0], f"rows of {form.shape[0]} features, which this model takes", fix))
    inputs = list(pool.map(lambda name: _image(name, form), names))
    pairs = [("standard input" if name == STDIN else readable(name), each) for name, each in zip(names, inputs)]
    good = [(name, each) for name, each in pairs if not isinstance(each, str)]
    x = form.join([each for _, each in good])
    return Batch([name for name, _ in good], x, [(name, each) for name, each in pairs if isinstance(each, str)])


def _rows(name: str, form: InputForm, size: int) -> Iterator[Batch]:
    source = ArraySource(name)
    source.check(form)
    for chunk in source.chunks(form, size):
        finite = np.isfinite(np.asarray(chunk.x).reshape(len(chunk.x), -1)).all(1)
        pairs = [(f"{readable(name)}[{row}]", good) for row, good in zip(chunk.rows, finite.tolist())]
        bad = [(each, "holds NaN or infinite values") for each, good in pairs if not good]
        yield Batch([each for each, good in pairs if good], chunk.x[finite], bad)
    source.close()


def _image(name: str, form: InputForm) -> Any:
    """Return the image as one input of the model, or why it cannot be read."""
    if name != STDIN:
        return read_input(Path(name), form)
    content = standard_input().read(MOST_STDIN + 1)
    if len(content) > MOST_STDIN:
        return f"more than {MOST_STDIN >> 20} MiB came in"
    return read_input(content, form) if content else "nothing came in"
