"""notMNIST from its author's archive of the small set: letters A to J of many fonts, 28x28.

No checksum of it is published, so only its length is verified, and that all ten letters are in it.
"""

from __future__ import annotations

import io
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from abnn.data import ArraySource
from abnn.data.images import open_image
from abnn.errors import FileFormatError, unknown
from abnn.files import write_bytes

URLS = (
    "http://yaroslavvb.com/upload/notMNIST/notMNIST_small.tar.gz",
    "https://commondatastorage.googleapis.com/books1000/notMNIST_small.tar.gz",
)
SIZE = 8_458_043
LETTERS = tuple("ABCDEFGHIJ")


def open_notmnist(text: str, name: str, root: Path) -> ArraySource:
    """Return "notmnist/test" from ``<root>/notmnist/test.npz``, which is made from a download if it is not there."""
    if text != "notmnist/test":
        raise unknown("source", text, ["notmnist/test"])
    file = root / "notmnist" / "test.npz"
    if not file.is_file():
        content = io.BytesIO()
        np.savez(content, **read_archive(download(root / "downloads")))  # type: ignore[arg-type]
        write_bytes(file, content.getvalue())
    return ArraySource(file, name, LETTERS)


def download(folder: Path) -> Path:
    """Return the archive, from the first address that has it."""
    import pooch

    def fetch(url: str, output: Any, caller: Any) -> None:
        pooch.HTTPDownloader(progressbar=True)(url, output, caller)
        if Path(output).stat().st_size != SIZE:
            raise ValueError(f"{Path(output).stat().st_size:,} bytes instead of {SIZE:,}")

    faults = []
    for url in URLS:
        try:
            return Path(pooch.retrieve(url, None, "notMNIST_small.tar.gz", folder, downloader=fetch))
        except (OSError, ValueError) as error:  # of the connection, of the server, of the size
            faults.append(f"{url}: {error}")
    raise FileFormatError(f"notmnist/test could not be downloaded: {'; '.join(faults)}.")


def read_archive(archive: Path) -> dict[str, np.ndarray]:
    """Return ``images`` and ``labels`` in the order of their paths; nothing is unpacked onto the disk.

    Two of its files are no images; what cannot be read as 28x28 is left out. An archive that is none is removed.
    """
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
