"""From bytes that anybody may have sent to pixels, the same that :func:`abnn.data.read_image` gives for a file."""

from __future__ import annotations

import io
import re

import numpy as np
from PIL import Image

from abnn.data.images import read_image
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


def image_type(content: bytes) -> str | None:
    """Return Pillow's name of the format whose signature the bytes start with."""
    return next((kind for kind, start in SIGNATURES.items() if re.match(start, content, re.DOTALL)), None)


def decode(content: bytes, channels: int, max_pixels: int) -> np.ndarray:
    """Return one image as uint8 [H, W] or [H, W, 3]; only the decoder of the recognised type is tried.

    Pillow raises many kinds of errors on damaged files: the sender learns that the file is damaged and nothing else.
    """

    def check(width: int, height: int) -> None:
        if width < 1 or height < 1:
            raise Problem(422, "damaged-image", "The image has no pixels.")
        if width * height > max_pixels or max(width, height) > MAX_SIDE:
            raise _too_many_pixels(f"{width} x {height}", max_pixels)

    kind = image_type(content)
    if kind is None:
        raise Problem(
            415, "image-type", "The file is not an image of a type that is accepted: PNG, JPEG, WebP, BMP, GIF."
        )
    try:
        return read_image(content, channels, (kind,), check)
    except Problem:
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels("far too many", max_pixels) from None
    except Exception:  # noqa: BLE001 - see above
        raise Problem(422, "damaged-image", f"The file starts like a {kind} image but cannot be decoded.") from None


def encode_png(pixels: np.ndarray) -> bytes:
    """Return uint8 [H, W] or [H, W, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def _too_many_pixels(size: str, max_pixels: int) -> Problem:
    return Problem(413, "too-many-pixels", f"pixels: got {size}; accepted: at most {max_pixels:,} in one image.")
