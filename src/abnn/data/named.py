"""Data sets by name, such as "mnist/test" or "digits/semi".

"digits" is embedded. Any other set is the file ``<data root>/<dataset>/<split>.npz``. If a published set is not there, torchvision
downloads it, with its checksums, into a scratch folder, and the file is written when all of it has arrived.
"""

from __future__ import annotations

import difflib
import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from abnn.data.arrays import ArraySource
from abnn.data.digits import CLASS_NAMES as DIGITS
from abnn.data.digits import open_digits
from abnn.data.source import Source
from abnn.errors import FileFormatError, InputError, MissingExtraError, explain, unknown
from abnn.files import write_bytes
from abnn.networks.vision import torchvision

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FASHION = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
SPLITS = ("train", "test")
PUBLISHED: dict[str, tuple[str, tuple[str, ...] | None]] = {
    "mnist": ("MNIST", DIGITS),
    "svhn": ("SVHN", DIGITS),
    "cifar10": ("CIFAR10", CIFAR10),
    "cifar100": ("CIFAR100", None),
    "fashion-mnist": ("FashionMNIST", FASHION),
}
"""The name of each set in torchvision.datasets, and what its labels mean; None: the downloaded set says."""
OPENERS: dict[str, Callable[[str, str, Path], Source]] = {"digits": lambda text, name, root: open_digits(text, name)}
"""Functions of (text, name, data root) that open further sets, by "DATASET" or "DATASET/SPLIT"."""


def open_named(text: str, root: str | Path | None = None, name: str | None = None) -> Source:
    """Return the data set called ``text``: DATASET/SPLIT, and for the embedded digits also DATASET/SPLIT/SEED."""
    folder, (dataset, _, split) = data_root(root), text.partition("/")
    opener = OPENERS.get(text) or OPENERS.get(dataset)
    if opener is not None:
        return opener(text, name or text, folder)
    files = (folder / f"{spelling}.npz" for spelling in (text, text.replace("-", "_")))
    file = next((file for file in files if file.is_file()), None)
    if dataset not in PUBLISHED or "/" in split:
        if file is None:
            names = [each if "/" in each else f"{each}/test" for each in (*PUBLISHED, *OPENERS)]
            close = difflib.get_close_matches(text, names, n=1)
            actual = f"{text!r}, which is no folder, no file and no known data set"
            accepted = f"a folder of images, an .npz file, or a name such as {', '.join(names)}"
            raise InputError(explain("source", actual, accepted, f"Did you mean {close[0]!r}?" if close else ""))
        return ArraySource(file, name or text)
    if file is None and split not in SPLITS:
        raise unknown("source", text, [f"{dataset}/{each}" for each in SPLITS])
    return ArraySource(file or _download(dataset, split, folder), name or text, PUBLISHED[dataset][1])


def data_root(root: str | Path | None = None) -> Path:
    """Return where data sets by name are kept: ``root``, else $ABNN_DATA, else ~/.cache/abnn."""
    return Path(root or os.environ.get("ABNN_DATA") or Path.home() / ".cache" / "abnn").expanduser()


def _download(dataset: str, split: str, root: Path) -> Path:
    """Fetch one split and return its file, ``<root>/<dataset>/<split>.npz``; other processes that need it wait."""
    file = root / dataset / f"{split}.npz"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f".{dataset}.lock"):
            if not file.is_file():  # else another process fetched it while this one waited
                content = io.BytesIO()
                np.savez(content, **read_published(dataset, split, root))
                write_bytes(file, content.getvalue())
    except MissingExtraError:
        raise
    except Exception as error:  # of the network, of a server, of a checksum, of a full disk: all end here
        raise FileFormatError(
            f"{dataset}/{split} could not be downloaded ({type(error).__name__}: {error}); check the connection and try "
            f"again, or put the data at {file} (arrays `images` and `labels`) and pass --data-root {root}."
        ) from error
    return file


def read_published(dataset: str, split: str, root: Path) -> dict[str, Any]:
    """Return ``images`` (uint8, channels last), ``labels``, and ``names`` where only the downloaded set knows them."""
    name, class_names = PUBLISHED[dataset]
    loader = getattr(torchvision().datasets, name)
    options: dict[str, Any] = {"split": split} if dataset == "svhn" else {"train": split == "train"}
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        raw = loader(scratch, download=True, **options)
    images, labels = np.asarray(raw.data), np.asarray(raw.labels if hasattr(raw, "labels") else raw.targets)
    if dataset == "svhn":  # channels first
        images = images.transpose(0, 2, 3, 1)
    names = {} if class_names else {"names": np.array(raw.classes)}
    return {"images": np.ascontiguousarray(images, np.uint8), "labels": labels.astype(np.int64), **names}
