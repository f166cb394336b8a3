"""Pictures from files and bytes. Pillow decodes here and nowhere else, and only the formats that are documented."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image, ImageOps

from abnn.files import check_regular

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""Pillow's names. What else Pillow can open is never tried: for EPS, for example, it would start Ghostscript."""
EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"})


def open_image(file: Path | IO[bytes], formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """Return an image of which only the header has been read; what is of another format is an error."""
    return Image.open(file, formats=formats)


def encode_png(picture: np.ndarray | Image.Image) -> bytes:
    """Return an image, or uint8 [H, W] or [H, W, 3], as PNG."""
    buffer = io.BytesIO()
    (Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture).save(buffer, "PNG")
    return buffer.getvalue()


def check_pixels(width: int, height: int) -> None:
    """Refuse a picture above Pillow's limit; Pillow itself only warns up to twice as many pixels."""
    most = Image.MAX_IMAGE_PIXELS
    if most is not None and width * height > most:
        raise ValueError(f"{width} x {height} pixels are more than the {most:,} that are safe to unpack")


def read_image(
    source: Path | bytes,
    channels: int,
    formats: tuple[str, ...] = FORMATS,
    check: Callable[[int, int], None] = check_pixels,
) -> np.ndarray:
    """Return an image as uint8 [H, W] or [H, W, 3], upright as its camera meant it; the first one of an animation.

    ``check`` gets width and height before anything is unpacked. Pillow's decoders raise many kinds of errors.
    """
    with io.BytesIO(source) if isinstance(source, bytes) else open(check_regular(source), "rb") as file:
        with open_image(file, formats) as image:
            check(*image.size)
            if image.format != "PNG":  # the only format with checksums
                return _pixels(image, channels)
            image.verify()  # which decoding alone does not look at; the file has to be opened again after it
        file.seek(0)
        with open_image(file, formats) as image:
            check(*image.size)
            return _pixels(image, channels)


def _pixels(image: Image.Image, channels: int) -> np.ndarray:
    """Return the pixels upright; 16-bit greys are rounded to 8 bits, where Pillow's own conversion would cut them off at 255."""
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):
        wide = np.asarray(image).astype(np.int64)
        if wide.min() < 0 or wide.max() > 65535:
            raise ValueError("its pixels have more than 16 bits")
        image = Image.fromarray(((wide + 128) // 257).astype(np.uint8))
    mode = "L" if channels == 1 else "RGB"
    return np.array(image if image.mode == mode else image.convert(mode))  # which would copy it


def read_input(source: Path | bytes, form: Any) -> Any:
    """Return an image as one input of an :class:`abnn.data.form.InputForm`, [1, ...], or, as text, why it cannot be read."""
    return or_reason(lambda: form.images(read_image(source, form.shape[0])[None]))


def or_reason(read: Callable[[], Any]) -> Any:
    """Return what ``read`` makes of an image, or, as text, why that cannot be read."""
    try:
        return read()
    except FileNotFoundError:
        return "no such file"
    except Exception as error:  # noqa: BLE001, for Pillow's many decoders raise whatever they come across
        text = str(error) or type(error).__name__  # Pillow's own has an address or a path in it
        return "no image of a known format" if text.startswith("cannot identify image file") else text
