"""Data sets by name: "mnist/test", "digits/semi", "cat-dog/val".

A set is looked for as ``<data root>/<dataset>/<split>.npz``. If it is not there, it is downloaded from where it is published,
with checksum and progress, and kept in that place; a set is downloaded once. "digits", "photographs" and "printed-digits" are
embedded, and some sets are classes of others (``CHOSEN``): they need no file. Where a set has training data, "fit" and "val"
are its two fixed parts (:mod:`abnn.data.parts`).

The data root is the one that was passed, else the environment variable ABNN_DATA, else ~/.cache/abnn.
"""

from __future__ import annotations

import difflib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from abnn.data.arrays import ArraySource
from abnn.data.digits import TEST_FACES, VALIDATION_FACES, DigitsData, load_digits, printed_bitmaps
from abnn.data.download import locked
from abnn.data.memory import MemorySource
from abnn.data.parts import PARTS, choose_classes, cut
from abnn.data.photographs import photograph_crops
from abnn.data.published import LETTERS, from_notmnist, from_torchvision
from abnn.data.source import Source
from abnn.errors import AbnnError, FileFormatError, InputError, MissingExtraError, explain, unknown
from abnn.files import write_bytes

DIGITS = tuple("0123456789")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


@dataclass(frozen=True)
class Known:
    """A data set that has a name.

    splits       that can be downloaded
    class_names  what the labels mean; None: the downloaded set says
    loader       the name in torchvision.datasets; None where it has none
    """

    splits: tuple[str, ...]
    class_names: tuple[str, ...] | None
    loader: str | None


KNOWN = {
    "mnist": Known(("train", "test"), DIGITS, "MNIST"),
    "semeion": Known(("test",), DIGITS, "SEMEION"),
    "svhn": Known(("train", "test"), DIGITS, "SVHN"),
    "cifar10": Known(("train", "test"), CIFAR10, "CIFAR10"),
    "cifar100": Known(("train", "test"), None, "CIFAR100"),
    "fashion-mnist": Known(("train", "test"), FASHION, "FashionMNIST"),
    "notmnist": Known(("test",), LETTERS, None),
}
CHOSEN = {
    "cat-dog": ("cifar10", ("cat", "dog")),
    "tiger-wolf": ("cifar100", ("tiger", "wolf")),
    "unrelated": ("cifar10", ("airplane", "automobile", "ship", "truck")),
}
"""Sets that are some classes of another one, with labels in this order: a tiger is to be taken for a cat, a wolf for a dog."""
DIGITS_SPLITS = tuple(field.name for field in fields(DigitsData))


def open_named(text: str, root: str | Path | None = None, name: str | None = None) -> Source:
    """The data set called ``text``: DATASET/SPLIT, and for the embedded digits DATASET/SPLIT or DATASET/SPLIT/SEED."""
    parts = text.split("/")
    if parts[0] == "digits":
        return _open_digits(parts, name or text)
    if text in EMBEDDED:
        return EMBEDDED[text](name or text)
    if len(parts) != 2 or parts[0] not in (*KNOWN, *CHOSEN):
        found = _find(data_root(root), text)
        if found is not None:
            return ArraySource(found, name or text)
        names = [*(f"{key}/test" for key in ("digits", *KNOWN, *CHOSEN)), *EMBEDDED]
        close = difflib.get_close_matches(text, names, n=1)
        given = f"{text!r}, which is no folder, no file and no known data set"
        accepted = f"a folder of images, an .npz file, or a name such as {', '.join(names)}"
        raise InputError(explain("source", given, accepted, f"Did you mean {close[0]!r}?" if close else ""))
    dataset, split = parts
    if split in PARTS and split in _splits(dataset):
        return cut(open_named(f"{dataset}/train", root), split, name or text)
    if dataset in CHOSEN:
        if split not in _splits(dataset):
            raise unknown("source", text, [f"{dataset}/{each}" for each in _splits(dataset)])
        whole, classes = CHOSEN[dataset]
        return choose_classes(open_named(f"{whole}/{split}", root), classes, name or text)
    path = _find(data_root(root), text) or _download(dataset, split, data_root(root))
    factor = 255 if dataset == "semeion" and _binary(path) else 1
    return ArraySource(path, name or text, KNOWN[dataset].class_names, factor)


def _splits(dataset: str) -> tuple[str, ...]:
    """Every split of a set that has a name."""
    known = KNOWN[CHOSEN[dataset][0] if dataset in CHOSEN else dataset]
    return (*known.splits, *(PARTS if "train" in known.splits else ()))


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets by name are kept."""
    return Path(root or os.environ.get("ABNN_DATA") or Path.home() / ".cache" / "abnn").expanduser()


def _open_digits(parts: list[str], name: str) -> MemorySource:
    split, seed = (*parts[1:], "0")[:2] if len(parts) > 1 else ("", "0")
    if split not in DIGITS_SPLITS or len(parts) > 3:
        raise unknown("source", "/".join(parts), [f"digits/{each}" for each in DIGITS_SPLITS])
    if not (seed.isascii() and seed.isdigit()):
        raise InputError(explain("source", repr("/".join(parts)), "digits/SPLIT/SEED with a whole number as seed"))
    part = getattr(load_digits(int(seed)), split)
    return MemorySource(part.x.movedim(1, -1).numpy(), part.y.numpy(), name, DIGITS)


def _open_photographs(name: str) -> MemorySource:
    pictures = photograph_crops(4000, seed=5)
    return MemorySource(pictures, np.full(len(pictures), -1, np.int64), name)


def _open_printed(name: str) -> MemorySource:
    bitmaps, labels = printed_bitmaps((*TEST_FACES, *VALIDATION_FACES), copies=10, seed=6)
    return MemorySource((bitmaps * 255).byte().numpy(), labels.numpy(), name, DIGITS)


EMBEDDED: dict[str, Callable[[str], MemorySource]] = {
    "photographs/val": _open_photographs,
    "printed-digits/val": _open_printed,
}
"""Pictures to choose settings by: 4,000 crops of two photographs, 32x32 in colour, and 2,060 printed digits, 32x32, bright on
dark."""


def _find(root: Path, text: str) -> Path | None:
    """The file of a data set, with either way to write a name of two words."""
    for spelling in (text, text.replace("-", "_")):
        path = root / f"{spelling}.npz"
        if path.is_file():
            return path
    return None


def _binary(path: Path) -> bool:
    """SEMEION is distributed as 0 and 1."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return bool(arrays["images"].max() <= 1)
    except (KeyError, OSError, ValueError):
        return False  # opening it will say what is wrong


def _download(dataset: str, split: str, root: Path) -> Path:
    """Fetch one split from where it is published and keep it as ``<root>/<dataset>/<split>.npz``."""
    known = KNOWN[dataset]
    if split not in known.splits:
        raise unknown("source", f"{dataset}/{split}", [f"{dataset}/{each}" for each in _splits(dataset)])
    file, folder = root / dataset / f"{split}.npz", root / "downloads" / dataset
    try:
        with locked(folder.with_name(f".{dataset}.lock")):
            if file.is_file():  # by another process, while this one waited
                return file
            loader = known.loader
            arrays = from_notmnist(folder) if loader is None else from_torchvision(loader, split, folder)
            if known.class_names:
                arrays.pop("names", None)
            content = io.BytesIO()
            np.savez(content, **arrays)  # type: ignore[arg-type]
            write_bytes(file, content.getvalue())
    except MissingExtraError:
        raise
    except Exception as error:  # of the network, of a server, of a checksum, of a full disk: all end here
        cause = str(error) if isinstance(error, AbnnError) else f"{type(error).__name__}: {error}"
        raise FileFormatError(
            f"{dataset}/{split} could not be downloaded ({cause}); check the connection and try again, which goes on where "
            f"it stopped, or put the data at {file} (arrays `images` and `labels`) and pass --data-root {root}."
        ) from error
    return file
