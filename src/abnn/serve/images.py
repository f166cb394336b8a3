"""From bytes that anybody may have sent to pixels, the same that :func:`abnn.data.read_image` gives for a file."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from functools import partial

import numpy as np
from PIL import Image

from abnn.data.images import open_image, read_image
from abnn.serve.problems import Problem

MAX_SIDE = 100_000
SIGNATURES = {
    "PNG": rb"\x89PNG\r\n\x1a\n",
    "JPEG": rb"\xff\xd8\xff",
    "WEBP": rb"RIFF....WEBP",
    "BMP": rb"BM",
    "GIF": rb"GIF8[79]a",
}
"""Pillow's names of the accepted formats, and how their files start."""


def decode(content: bytes, channels: int, max_pixels: int) -> np.ndarray:
    """Return one image as uint8 [H, W] or [H, W, 3]; a :class:`Problem` if it is none, or has too many pixels."""
    with _reading(content, max_pixels) as kind:
        return read_image(content, channels, (kind,), partial(_check_size, max_pixels))


def count_pixels(content: bytes, max_pixels: int) -> int:
    """Return width times height as the header has them; nothing is unpacked. The problems are those of ``decode``."""
    with _reading(content, max_pixels) as kind, open_image(io.BytesIO(content), (kind,)) as image:
        _check_size(max_pixels, *image.size)
        return image.width * image.height


def kind_of(content: bytes) -> str | None:
    """Return Pillow's name of the format that a file has; None if it is not accepted."""
    return next((kind for kind, start in SIGNATURES.items() if re.match(start, content, re.DOTALL)), None)


@contextlib.contextmanager
def _reading(content: bytes, max_pixels: int) -> Iterator[str]:
    """Yield the type that the content has, so that only its decoder is tried, and turn every error into a problem.

    Pillow raises many kinds of errors on damaged files. The sender learns that the file is damaged and nothing else.
    """
    if (kind := kind_of(content)) is None:
        message = "The file is not an image of a type that is accepted: PNG, JPEG, WebP, BMP, GIF."
        raise Problem(415, "image-type", message)
    try:
        yield kind
    except Problem:
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels("far too many", max_pixels) from None
    except Exception:  # noqa: BLE001 - see above
        raise Problem(422, "damaged-image", f"The file starts like a {kind} image but cannot be decoded.") from None


def _check_size(max_pixels: int, width: int, height: int) -> None:
    if width < 1 or height < 1:
        raise Problem(422, "damaged-image", "The image has no pixels.")
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        raise _too_many_pixels(f"{width} x {height}", max_pixels)


def _too_many_pixels(size: str, max_pixels: int) -> Problem:
    return Problem(413, "too-many-pixels", f"pixels: got {size}; accepted: at most {max_pixels:,} in one image.")
