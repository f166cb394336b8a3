"""Folders of images: sub-folders are classes, a flat folder has none."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from abnn.data.form import InputForm
from abnn.data.images import EXTENSIONS, read_input
from abnn.data.source import Chunk, Source
from abnn.errors import InputError, explain, readable
from abnn.files import walk

THREADS = min(4, os.cpu_count() or 1)


class FolderSource(Source):
    """The images of one folder, in the order of their paths; files with other extensions and hidden ones are left out."""

    kind = "images"

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.resolve().name
        if not self.path.is_dir():
            raise InputError(explain("source", f"{self.path}, which is no folder", "an existing folder of images"))
        self.files, others = _listing(self.path)
        if not self.files:
            accepted = f"a folder with images ({', '.join(sorted(EXTENSIONS))})"
            raise InputError(explain("source", f"{self.path}, a folder without images", accepted))
        folders = [file.split("/")[0] if "/" in file else None for file in self.files]
        classes = sorted({each for each in folders if each is not None})
        if classes and None in folders:
            direct = f"{folders.count(None)} images directly in {self.path}"
            actual = f"{direct} and others in sub-folders ({', '.join(classes[:3])}, ...)"
            fix = "Move the ones or the others elsewhere."
            raise InputError(explain("source", actual, "either a flat folder, or one sub-folder for each class", fix))
        number: dict[str | None, int] = {each: place for place, each in enumerate(classes)}
        self.labels = np.array([number.get(each, -1) for each in folders], np.int64)
        self.class_names = tuple(classes) or None
        self.notes = (f"{others} files that are no images were left out",) if others else ()
        self.fingerprint = _fingerprint(self.path, self.files)

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        with ThreadPoolExecutor(THREADS) as pool:
            inputs = list(pool.map(lambda row: read_input(self.path / self.files[row], form), rows))
        good = np.array([not isinstance(each, str) for each in inputs])
        faults = [f"{readable(self.files[row])}: {why}" for row, why in zip(rows, inputs) if isinstance(why, str)]
        x = form.join([each for each in inputs if not isinstance(each, str)])
        return Chunk(x, rows[good], int(rows[-1]) + 1, tuple(faults))


def _listing(root: Path) -> tuple[list[str], int]:
    """Return paths of all images below the folder, with "/", in a fixed order, and the number of other files."""
    images, others = [], 0
    for folder, names in walk(str(root), "."):
        for name in names:
            if Path(name).suffix.lower() in EXTENSIONS:
                images.append((Path(folder) / name).relative_to(root).as_posix())
            else:
                others += 1
    return sorted(images, key=lambda path: path.split("/")), others


def _fingerprint(root: Path, images: list[str]) -> str:
    """Return a hash over paths, sizes and times of all images."""
    digest = hashlib.sha256(os.fsencode(root.resolve()))
    for image in images:
        try:
            stat = (root / image).stat()
            digest.update(os.fsencode(f"{image}\0{stat.st_size} {stat.st_mtime_ns}\n"))
        except OSError:  # a link to nowhere: reading it will say so
            digest.update(os.fsencode(f"{image}\0\n"))
    return digest.hexdigest()
