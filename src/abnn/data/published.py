"""Data sets as they are published: where the files are, and the arrays in them.

torchvision names the files with their MD5 sums and reads them; pooch fetches them, so that a file is checked and complete,
or absent. notMNIST is read from its author's archive of the small set. No checksum of it is published, so only its length is
verified, and that all ten letters are in it.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from abnn.data.images import open_image
from abnn.errors import FileFormatError
from abnn.networks.vision import torchvision

NOTMNIST = (
    "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
    "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
)
NOTMNIST_SIZE = 8_458_043
LETTERS = tuple("ABCDEFGHIJ")


class Published(NamedTuple):
    """A published file."""

    urls: list[str]  # addresses that have it
    place: str  # in torchvision's folder
    md5: str


def fetch(urls: Sequence[str], file: Path, md5: str | None = None, size: int | None = None) -> Path:
    """Return the file, downloaded with a progress bar from the first address that has it, unless it is there already.

    md5, size  what the file must have; None: not checked. A file of other content is fetched again.
    """
    import pooch

    def download(url: str, output: Any, caller: Any) -> None:
        pooch.HTTPDownloader(progressbar=True)(url, output, caller)
        if size is not None and Path(output).stat().st_size != size:
            raise ValueError(f"{Path(output).stat().st_size:,} bytes instead of {size:,}")

    if size is not None and file.exists() and file.stat().st_size != size:
        file.unlink()
    faults = []
    for url in urls:
        registry = {file.name: None if md5 is None else f"md5:{md5}"}
        store = pooch.create(file.parent, "", registry=registry, urls={file.name: url}, retry_if_failed=2)
        try:
            return Path(store.fetch(file.name, downloader=download))
        except (OSError, ValueError) as error:  # of the connection, of the server; of size or checksum
            faults.append(f"{url}: {error}")
    raise FileFormatError(f"{file.name} could not be downloaded: {'; '.join(faults)}.")


def read_torchvision(loader: str, split: str, folder: Path) -> dict[str, np.ndarray]:
    """Return ``images`` (uint8, channels last), ``labels``, and ``names`` where one of torchvision's classes knows them.

    Files are fetched into ``folder``. They are unpacked in a scratch folder, so nothing half-written is taken for whole.
    """
    kind = getattr(torchvision().datasets, loader)
    files = [(each.place, fetch(each.urls, folder / each.place, each.md5)) for each in published_files(kind, split)]
    options: dict[str, Any] = {"split": split} if hasattr(kind, "split_list") else {"train": split == "train"}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for place, file in files:
            (Path(scratch) / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, Path(scratch) / place)
        raw = kind(
            scratch, download=True, **({} if loader == "SEMEION" else options)
        )  # the files are there: it unpacks
    images, labels = np.asarray(raw.data), np.asarray(raw.labels if hasattr(raw, "labels") else raw.targets)
    if images.ndim == 4 and images.shape[1] == 3:  # as torchvision keeps SVHN
        images = images.transpose(0, 2, 3, 1)
    names = {"names": np.array(raw.classes)} if hasattr(raw, "classes") else {}
    return {"images": np.ascontiguousarray(images, np.uint8), "labels": labels.astype(np.int64), **names}


def published_files(kind: Any, split: str) -> list[Published]:
    """Return what torchvision's class of a data set says about its files."""
    if hasattr(kind, "resources"):  # the MNIST family
        place = f"{kind.__name__}/raw"
        return [
            Published([each + name for each in kind.mirrors], f"{place}/{name}", md5) for name, md5 in kind.resources
        ]
    if hasattr(kind, "split_list"):  # SVHN
        url, name, md5 = kind.split_list[split]
        return [Published([url], name, md5)]
    return [Published([kind.url], kind.filename, kind.tgz_md5 if hasattr(kind, "tgz_md5") else kind.md5_checksum)]


def read_notmnist(folder: Path) -> dict[str, np.ndarray]:
    """Return the small set of notMNIST: letters A to J of many fonts, 28x28, in the order of their paths.

    Two of its files are no images; what cannot be read as 28x28 is left out. Nothing is unpacked onto the disk.
    """
    archive = fetch(NOTMNIST, folder / "notMNIST_small.tar.gz", size=NOTMNIST_SIZE)
    letters: dict[str, np.ndarray] = {}
    try:
        with tarfile.open(archive) as members:
            for member in members:
                place = PurePosixPath(member.name)
                content = members.extractfile(member) if member.isreg() else None
                if content is not None and place.suffix == ".png" and place.parent.name in LETTERS:
                    image = _read_square(content.read())
                    if image is not None:
                        letters[f"{place.parent.name}/{place.name}"] = image  # as in "A/a29ydW5pLnR0Zg==.png"
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        archive.unlink()
        raise FileFormatError(f"{archive.name} is damaged ({error}) and was removed; try again.") from None
    names = sorted(letters)
    labels = np.array([LETTERS.index(name[0]) for name in names], np.int64)
    if len(np.unique(labels)) < len(LETTERS):
        archive.unlink()
        lack = "for not all letters from A to J are in it"
        raise FileFormatError(f"{archive.name} is not notMNIST, {lack}; it was removed.")
    return {"images": np.stack([letters[name] for name in names]), "labels": labels}


def _read_square(content: bytes) -> np.ndarray | None:
    """Return an image of 28x28 in grey, or None if it is none."""
    try:
        with open_image(io.BytesIO(content), ("PNG",)) as image:
            return np.array(image.convert("L")) if image.size == (28, 28) else None
    except Exception:  # noqa: BLE001, for Pillow's many decoders raise whatever they come across
        return None
