"""Data sets by name: "mnist/test", "digits/semi", "cat-dog/val".

A set is looked for as ``<data root>/<dataset>/<split>.npz``. If it is not there, it is downloaded from where it is published
and kept in that place. ``EMBEDDED`` sets and those that are classes of others (``CHOSEN``) need no file. Where a set has
training data, "fit" and "val" are its two fixed parts (:mod:`abnn.data.parts`).
"""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock

from abnn.data.arrays import ArraySource
from abnn.data.digits import open_digits, open_printed_digits
from abnn.data.parts import PARTS, choose_classes, cut
from abnn.data.photographs import open_photographs
from abnn.data.published import LETTERS, read_notmnist, read_torchvision
from abnn.data.source import Source
from abnn.errors import AbnnError, FileFormatError, InputError, MissingExtraError, explain, unknown
from abnn.files import write_bytes

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


class Downloadable(NamedTuple):
    """A data set that can be downloaded."""

    splits: tuple[str, ...]  # that are published
    class_names: tuple[str, ...] | None  # what the labels mean; None: the downloaded set says
    loader: str | None  # the name in torchvision.datasets; None where it has none


DOWNLOADABLE = {
    "mnist": Downloadable(("train", "test"), DIGITS, "MNIST"),
    "semeion": Downloadable(("test",), DIGITS, "SEMEION"),
    "svhn": Downloadable(("train", "test"), DIGITS, "SVHN"),
    "cifar10": Downloadable(("train", "test"), CIFAR10, "CIFAR10"),
    "cifar100": Downloadable(("train", "test"), None, "CIFAR100"),
    "fashion-mnist": Downloadable(("train", "test"), FASHION, "FashionMNIST"),
    "notmnist": Downloadable(("test",), LETTERS, None),
}
CHOSEN = {
    "cat-dog": ("cifar10", ("cat", "dog")),
    "tiger-wolf": ("cifar100", ("tiger", "wolf")),
    "unrelated": ("cifar10", ("airplane", "automobile", "ship", "truck")),
}
"""Sets that are some classes of another one, with labels in this order: a tiger is to be taken for a cat, a wolf for a dog."""
EMBEDDED: dict[str, Callable[[str], Source]] = {
    "photographs/val": open_photographs,
    "printed-digits/val": open_printed_digits,
}


def open_named(text: str, root: str | Path | None = None, name: str | None = None) -> Source:
    """Return the data set called ``text``: DATASET/SPLIT, and for the embedded digits also DATASET/SPLIT/SEED."""
    dataset, _, split = text.partition("/")
    if dataset == "digits":
        return open_digits(text, name or text)
    if text in EMBEDDED:
        return EMBEDDED[text](name or text)
    file = _find(data_root(root), text)
    whole, classes = CHOSEN.get(dataset, (dataset, None))
    if "/" in split or whole not in DOWNLOADABLE:
        if file is None:
            raise _not_a_source(text)
        return ArraySource(file, name or text)
    published = DOWNLOADABLE[whole]
    if split in PARTS and "train" in published.splits:
        return cut(open_named(f"{dataset}/train", root), split, name or text)
    if split not in published.splits and (classes or file is None):
        splits = (*published.splits, *(PARTS if "train" in published.splits else ()))
        raise unknown("source", text, [f"{dataset}/{each}" for each in splits])
    if classes:
        return choose_classes(open_named(f"{whole}/{split}", root), classes, name or text)
    file = file or _download(dataset, split, data_root(root))
    return ArraySource(file, name or text, published.class_names, binary=dataset == "semeion")


def data_root(root: str | Path | None = None) -> Path:
    """Return where data sets by name are kept: ``root``, else $ABNN_DATA, else ~/.cache/abnn."""
    return Path(root or os.environ.get("ABNN_DATA") or Path.home() / ".cache" / "abnn").expanduser()


def _find(root: Path, text: str) -> Path | None:
    """Return the file of a data set, with either way to write a name of two words."""
    files = (root / f"{spelling}.npz" for spelling in (text, text.replace("-", "_")))
    return next((file for file in files if file.is_file()), None)


def _not_a_source(text: str) -> InputError:
    names = [*(f"{key}/test" for key in ("digits", *DOWNLOADABLE, *CHOSEN)), *EMBEDDED]
    close = difflib.get_close_matches(text, names, n=1)
    given = f"{text!r}, which is no folder, no file and no known data set"
    accepted = f"a folder of images, an .npz file, or a name such as {', '.join(names)}"
    return InputError(explain("source", given, accepted, f"Did you mean {close[0]!r}?" if close else ""))


def _download(dataset: str, split: str, root: Path) -> Path:
    """Fetch one split and return its file, ``<root>/<dataset>/<split>.npz``; other processes that need it wait."""
    published = DOWNLOADABLE[dataset]
    file, folder = root / dataset / f"{split}.npz", root / "downloads" / dataset
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{dataset}.lock")):
            if file.is_file():  # by another process, while this one waited
                return file
            loader = published.loader
            arrays = read_notmnist(folder) if loader is None else read_torchvision(loader, split, folder)
            if published.class_names:
                arrays.pop("names", None)
            content = io.BytesIO()
            np.savez(content, **arrays)  # type: ignore[arg-type]
            write_bytes(file, content.getvalue())
    except MissingExtraError:
        raise
    except Exception as error:  # of the network, of a server, of a checksum, of a full disk: all end here
        cause = str(error) if isinstance(error, AbnnError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(
            f"{dataset}/{split} could not be downloaded ({cause}); check the connection and try again, or put the data at "
            f"{file} (arrays `images` and `labels`) and pass --data-root {root}."
        ) from error
    return file
