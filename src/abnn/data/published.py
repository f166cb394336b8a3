"""Data sets as they are published: which files, and the arrays in them.

torchvision names the files with their MD5 sums and reads them; they are fetched and unpacked here, so that a download that
broke goes on and nothing half-written is ever taken for whole. notMNIST is read from its author's archive of the small set. No
checksum of it is published, so only its length is verified, and that all ten letters are in it.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from abnn.data.download import fetch
from abnn.errors import FileFormatError
from abnn.files import write_bytes
from abnn.networks.vision import torchvision

NOTMNIST = (
    "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
    "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
)
NOTMNIST_SIZE = 8_458_043
LETTERS = tuple("ABCDEFGHIJ")


class Published(NamedTuple):
    """A file: addresses that have it, its place in torchvision's folder, and its MD5 sum."""

    urls: list[str]
    place: str
    md5: str


def from_torchvision(loader: str, split: str, folder: Path) -> dict[str, np.ndarray]:
    """``images`` (uint8, channels last), ``labels``, and ``names`` where torchvision knows them, by one of its classes."""
    kind = getattr(torchvision().datasets, loader)
    for each in published_files(kind, split):
        file = fetch(each.urls, folder / each.place, each.md5)
        if file.name.endswith(".tar.gz"):
            unpack_tar(file, folder)
        elif file.name.endswith(".gz"):
            write_bytes(file.with_suffix(""), gzip.decompress(file.read_bytes()))
    options: dict[str, Any] = {"split": split} if hasattr(kind, "split_list") else {"train": split == "train"}
    raw = kind(str(folder), download=False, **({} if loader == "SEMEION" else options))
    images, labels = np.asarray(raw.data), np.asarray(raw.labels if hasattr(raw, "labels") else raw.targets)
    if images.ndim == 4 and images.shape[1] == 3:  # as torchvision keeps SVHN
        images = images.transpose(0, 2, 3, 1)
    arrays: dict[str, np.ndarray] = {
        "images": np.ascontiguousarray(images, np.uint8),
        "labels": labels.astype(np.int64),
    }
    if hasattr(raw, "classes"):
        arrays["names"] = np.array(raw.classes)
    return arrays


def published_files(kind: Any, split: str) -> list[Published]:
    """What torchvision's class of a data set says about its files."""
    if hasattr(kind, "resources"):  # the MNIST family
        folder = f"{kind.__name__}/raw"
        return [
            Published([mirror + name for mirror in kind.mirrors], f"{folder}/{name}", md5)
            for name, md5 in kind.resources
        ]
    if hasattr(kind, "split_list"):  # SVHN
        url, name, md5 = kind.split_list[split]
        return [Published([url], name, md5)]
    return [Published([kind.url], kind.filename, kind.tgz_md5 if hasattr(kind, "tgz_md5") else kind.md5_checksum)]


def unpack_tar(archive: Path, folder: Path) -> None:
    """The files of an archive, each complete or absent, and none outside of the folder; links and devices are refused."""
    with tarfile.open(archive) as members:
        for member in members:
            place = PurePosixPath(member.name)
            if place.is_absolute() or ".." in place.parts or "\\" in member.name or ":" in member.name:
                raise FileFormatError(f"{archive} holds {member.name!r}, a path out of its folder; do not use it.")
            content = members.extractfile(member) if member.isreg() else None
            if content is not None:
                write_bytes(folder / place, content.read())
            elif not member.isdir():
                raise FileFormatError(f"{archive} holds {member.name!r}, which is no ordinary file; do not use it.")


def from_notmnist(folder: Path) -> dict[str, np.ndarray]:
    """The small set of notMNIST: letters A to J of many fonts, 28x28, in the order of their paths.

    Two of its files are no images; what cannot be read as 28x28 is left out. Nothing is unpacked onto the disk.
    """
    archive = fetch(NOTMNIST, folder / "notMNIST_small.tar.gz", size=NOTMNIST_SIZE)
    try:
        found = _letters(archive)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        archive.unlink()
        raise FileFormatError(f"{archive.name} is damaged ({error}) and was removed; try again.") from None
    names = sorted(found)
    labels = np.array([LETTERS.index(name[0]) for name in names], np.int64)
    if set(labels.tolist()) != set(range(len(LETTERS))):
        archive.unlink()
        raise FileFormatError(
            f"{archive.name} is not notMNIST, for not all letters from A to J are in it; it was removed."
        )
    return {"images": np.stack([found[name] for name in names]), "labels": labels}


def _letters(archive: Path) -> dict[str, np.ndarray]:
    """The images of an archive by letter and name, as in "A/a29ydW5pLnR0Zg==.png"."""
    found = {}
    with tarfile.open(archive) as members:
        for member in members:
            place = PurePosixPath(member.name)
            content = members.extractfile(member) if member.isreg() else None
            if content is not None and place.suffix == ".png" and place.parent.name in LETTERS:
                image = _square(content.read())
                if image is not None:
                    found[f"{place.parent.name}/{place.name}"] = image
    return found


def _square(content: bytes) -> np.ndarray | None:
    """An image of 28x28 in grey, or None if it is none."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("L")) if image.size == (28, 28) else None
    except Exception:  # noqa: BLE001, for Pillow's many decoders raise whatever they come across
        return None
