"""Data sets by name: "mnist/test", "digits/semi".

A set is looked for as ``<data root>/<dataset>/<split>.npz``. If it is not there, torchvision downloads it, with its own
checksums and progress, and it is kept in that place; a set is downloaded once. "digits" is embedded and needs no file.

The data root is the one that was passed, else the environment variable ABNN_DATA, else ~/.cache/abnn.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from abnn.data.arrays import ArraySource
from abnn.data.digits import DigitsData, Labelled, load_digits
from abnn.data.form import InputForm
from abnn.data.source import Chunk, Source
from abnn.errors import AbnnError, FileFormatError, InputError, explain, unknown
from abnn.files import write_bytes
from abnn.vision import torchvision

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
    "notmnist": Known((), tuple("ABCDEFGHIJ"), None),
}
DIGITS_SPLITS = tuple(field.name for field in fields(DigitsData))


def open_named(text: str, root: str | Path | None = None, name: str | None = None) -> Source:
    """The data set called ``text``: DATASET/SPLIT, and for the embedded digits DATASET/SPLIT or DATASET/SPLIT/SEED."""
    parts = text.split("/")
    if parts[0] == "digits":
        return _open_digits(parts, name or text)
    if len(parts) != 2 or parts[0] not in KNOWN:
        found = _find(data_root(root), text)
        if found is not None:
            return ArraySource(found, name or text)
        names = [f"{key}/test" for key in ("digits", *KNOWN)]
        close = difflib.get_close_matches(text, names, n=1)
        given = f"{text!r}, which is no folder, no file and no known data set"
        accepted = f"a folder of images, an .npz file, or a name such as {', '.join(names)}"
        raise InputError(explain("source", given, accepted, f"Did you mean {close[0]!r}?" if close else ""))
    known = KNOWN[parts[0]]
    path = _find(data_root(root), text) or _download(parts[0], parts[1], data_root(root))
    return ArraySource(path, name or text, known.class_names, 255 if parts[0] == "semeion" and _binary(path) else 1)


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets by name are kept."""
    return Path(root or os.environ.get("ABNN_DATA") or Path.home() / ".cache" / "abnn").expanduser()


class DigitsSource(Source):
    """One part of the embedded digits."""

    kind = "images"
    class_names = DIGITS

    def __init__(self, part: Labelled, name: str) -> None:
        self.name = name
        self.pictures = part.x.movedim(1, -1).numpy()
        self.labels = part.y.numpy()
        digest = hashlib.sha256(np.ascontiguousarray(self.pictures).tobytes())
        digest.update(self.labels.tobytes())
        self.fingerprint = digest.hexdigest()

    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        return Chunk(form.images(self.pictures[first:last]), np.arange(first, last), last)


def _open_digits(parts: list[str], name: str) -> DigitsSource:
    split, seed = (*parts[1:], "0")[:2] if len(parts) > 1 else ("", "0")
    if split not in DIGITS_SPLITS or len(parts) > 3:
        raise unknown("source", "/".join(parts), [f"digits/{each}" for each in DIGITS_SPLITS])
    if not (seed.isascii() and seed.isdigit()):
        raise InputError(explain("source", repr("/".join(parts)), "digits/SPLIT/SEED with a whole number as seed"))
    return DigitsSource(getattr(load_digits(int(seed)), split), name)


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
    """Fetch one split through torchvision and keep it as ``<root>/<dataset>/<split>.npz``."""
    known = KNOWN[dataset]
    file = root / dataset / f"{split}.npz"
    if known.loader is None:
        fix = "Make it from the original images with numpy.savez(path, images=..., labels=...)."
        given = f"{dataset}/{split}, which torchvision cannot download"
        raise InputError(explain("source", given, f"a file {file} with `images` (uint8 [N, 28, 28]) and `labels`", fix))
    if split not in known.splits:
        raise unknown("source", f"{dataset}/{split}", [f"{dataset}/{each}" for each in known.splits])
    loader = getattr(torchvision().datasets, known.loader)
    try:
        raw = loader(str(root / "downloads" / dataset), download=True, **_options(dataset, split))
    except AbnnError:
        raise
    except Exception as error:  # of the network, of a server, of a checksum, of a full disk: all end here
        raise FileFormatError(
            f"{dataset}/{split} could not be downloaded ({type(error).__name__}: {error}); check the connection and try "
            f"again, or put the data at {file} (arrays `images` and `labels`) and pass --data-root {root}."
        ) from error
    images, labels = np.asarray(raw.data), np.asarray(raw.labels if hasattr(raw, "labels") else raw.targets)
    if dataset == "svhn":  # torchvision keeps channels first here
        images = images.transpose(0, 2, 3, 1)
    names: dict[str, Any] = {} if known.class_names else {"names": np.array(raw.classes)}
    content = io.BytesIO()
    np.savez(content, images=np.ascontiguousarray(images, np.uint8), labels=labels.astype(np.int64), **names)
    write_bytes(file, content.getvalue())
    return file


def _options(dataset: str, split: str) -> dict[str, Any]:
    """How torchvision's loader is told which split is meant."""
    if dataset == "semeion":
        return {}
    return {"split": split} if dataset == "svhn" else {"train": split == "train"}
