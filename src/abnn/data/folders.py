"""Folders of images: sub-folders are classes, a flat folder has none."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from abnn.data.form import InputForm
from abnn.data.source import Chunk, Source
from abnn.errors import InputError, explain

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})
_THREADS = min(4, os.cpu_count() or 1)


class FolderSource(Source):
    """The images of one folder, in the order of their paths; files with other extensions and hidden ones are left out."""

    kind = "images"

    def __init__(self, path: str | Path, name: str | None = None) -> None:
        self.path = Path(path)
        self.name = name or self.path.resolve().name
        images, others = _listing(self.path)
        if not images:
            accepted = f"a folder with images ({', '.join(sorted(EXTENSIONS))})"
            raise InputError(explain("source", f"{self.path}, a folder without images", accepted))
        folders = [image.split("/")[0] if "/" in image else None for image in images]
        classes = sorted({each for each in folders if each is not None})
        direct = folders.count(None)
        if classes and direct:
            given = f"{direct} images directly in {self.path} and others in sub-folders ({', '.join(classes[:3])}, ...)"
            fix = "Move the ones or the others elsewhere."
            raise InputError(explain("source", given, "either a flat folder, or one sub-folder for each class", fix))
        number: dict[str | None, int] = {each: place for place, each in enumerate(classes)}
        self.files = images
        self.labels = np.array([number.get(each, -1) for each in folders], np.int64)
        self.class_names = tuple(classes) or None
        self.notes = (f"{others} files that are no images were left out",) if others else ()
        self.fingerprint = _fingerprint(self.path, images)

    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        with ThreadPoolExecutor(_THREADS) as pool:
            read = list(pool.map(lambda place: _input(self.path / self.files[place], form), range(first, last)))
        good = [place for place, each in enumerate(read) if isinstance(each, Tensor)]
        x = [each for each in read if isinstance(each, Tensor)]
        bad = [f"{self.files[first + place]}: {each}" for place, each in enumerate(read) if isinstance(each, str)]
        stacked = torch.cat(x) if x else torch.zeros(0, *form.shape, dtype=form.dtype)
        return Chunk(stacked, first + np.array(good, np.int64), last, tuple(bad))


def read_image(path: Path, channels: int) -> np.ndarray:
    """One image as uint8 [H, W] or [H, W, 3], upright as its camera meant it; the first one of an animation."""
    from PIL import Image, ImageOps

    with open(path, "rb") as file:
        with Image.open(file) as image:
            width, height = image.size
            most = Image.MAX_IMAGE_PIXELS  # Pillow's limit; it only warns up to twice as many
            if most is not None and width * height > most:
                raise ValueError(f"{width} x {height} pixels are more than the {most:,} that are safe to unpack")
            image.verify()  # checksums, which decoding alone does not look at; the file has to be opened again after it
        file.seek(0)
        with Image.open(file) as image:
            if image.mode == "F":
                raise ValueError("its pixels are floating-point numbers of unknown range")
            if image.mode.startswith("I"):  # 16 bits; Pillow's own conversion would cut them off at 255
                wide = np.asarray(ImageOps.exif_transpose(image)).astype(np.int64)
                if wide.min() < 0 or wide.max() > 65535:
                    raise ValueError("its pixels have more than 16 bits")
                plain = Image.fromarray(((wide + 128) // 257).astype(np.uint8))
            else:
                plain = ImageOps.exif_transpose(image)
            return np.array(plain.convert("L" if channels == 1 else "RGB"))


def _input(path: Path, form: InputForm) -> Tensor | str:
    """The image as one input of the model, or why it cannot be read."""
    try:
        return form.images(read_image(path, form.shape[0])[None])
    except Exception as error:  # noqa: BLE001, for Pillow's many decoders raise whatever they come across
        return reason(error)


def reason(error: Exception) -> str:
    """Why an image cannot be read, without the address or path that Pillow puts into its message."""
    text = str(error) or type(error).__name__
    return "no image of a known format" if text.startswith("cannot identify image file") else text


def _listing(root: Path) -> tuple[list[str], int]:
    """Paths of all images below the folder, with "/", in a fixed order, and the number of other files."""
    images, others = [], 0
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".")]
        visible = [each for each in files if not each.startswith(".")]
        found = [each for each in visible if Path(each).suffix.lower() in EXTENSIONS]
        images += [(Path(folder) / each).relative_to(root).as_posix() for each in found]
        others += len(visible) - len(found)
    return sorted(images, key=lambda path: path.split("/")), others


def _fingerprint(root: Path, images: list[str]) -> str:
    """Paths, sizes and times of all images."""
    digest = hashlib.sha256(str(root.resolve()).encode())
    for image in images:
        try:
            stat = (root / image).stat()
            digest.update(f"{image}\0{stat.st_size} {stat.st_mtime_ns}\n".encode())
        except OSError:  # a link to nowhere: reading it will say so
            digest.update(f"{image}\0\n".encode())
    return digest.hexdigest()
