"""From bytes that anybody may have sent to pixels: type by content, limits before unpacking, no file names.

The pixels are the same that :func:`abnn.data.read_image` gives for the same bytes in a file.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps

from abnn.serve.problems import Problem

TYPES = ("PNG", "JPEG", "WebP", "BMP", "GIF")
MAX_SIDE = 100_000


def image_type(content: bytes) -> str | None:
    """Pillow's name of the format whose signature the bytes start with."""
    if content.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if content.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "WEBP"
    if content.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if content.startswith(b"BM"):
        return "BMP"
    return None


def decode(content: bytes, channels: int, max_pixels: int) -> np.ndarray:
    """One image as uint8 [H, W] or [H, W, 3], upright as its camera meant it; the first picture of an animation.

    Only the decoder of the recognised type is tried. Pillow raises many kinds of errors on damaged files; whatever it is,
    the sender learns that the file is damaged and nothing else.
    """
    kind = image_type(content)
    if kind is None:
        message = f"The file is not an image of a type that is accepted: {', '.join(TYPES)}."
        raise Problem(415, "image-type", message)
    try:
        with Image.open(io.BytesIO(content), formats=[kind]) as image:
            check_size(image.width, image.height, max_pixels)
            image.verify()  # checksums, which decoding alone does not look at
        with Image.open(io.BytesIO(content), formats=[kind]) as image:
            check_size(image.width, image.height, max_pixels)
            pixels = np.array(_eight_bits(image).convert("L" if channels == 1 else "RGB"))
    except Problem:
        raise
    except Image.DecompressionBombError:
        raise _too_many_pixels("far too many", max_pixels) from None
    except Exception:  # noqa: BLE001 - see above
        raise Problem(422, "damaged-image", f"The file starts like a {kind} image but cannot be decoded.") from None
    return pixels


def check_size(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise Problem(422, "damaged-image", "The image has no pixels.")
    if width * height > max_pixels or max(width, height) > MAX_SIDE:
        raise _too_many_pixels(f"{width} x {height}", max_pixels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Upright, and 16-bit greys rounded to 8 bits; Pillow's own conversion would cut them off at 255."""
    upright = ImageOps.exif_transpose(image)
    if not upright.mode.startswith("I"):
        return upright
    wide = np.asarray(upright).astype(np.int64)
    if wide.min() < 0 or wide.max() > 65535:
        raise ValueError("more than 16 bits")
    return Image.fromarray(((wide + 128) // 257).astype(np.uint8))


def _too_many_pixels(given: str, max_pixels: int) -> Problem:
    return Problem(413, "too-many-pixels", f"pixels: got {given}; accepted: at most {max_pixels:,} in one image.")


def encode_png(pixels: np.ndarray) -> bytes:
    """uint8 [H, W] or [H, W, 3] as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
