"""Pictures to show a model of photographs: some that come with the dependencies, and what is no photograph, made here."""

from __future__ import annotations

import io
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps

from abnn.data.images import encode_png, open_image

PHOTOGRAPHS = {
    "Palace": ("sklearn.datasets.images", "china.jpg"),
    "Flower": ("sklearn.datasets.images", "flower.jpg"),
    "Admiral": ("matplotlib", "mpl-data/sample_data/grace_hopper.jpg"),
}
TEXT = (
    "A page of text has lines, words and letters, but nothing that a network of photographs has ever learnt to name. It should "
    "say so, and not guess. "
)


class Picture(NamedTuple):
    """One picture of a group, as the bytes of its file."""

    group: str
    about: str
    title: str
    content: bytes


def demo_pictures() -> list[Picture]:
    """Return three photographs, drawings made of them, three textures and three pages."""
    originals = {name: (files(package) / path).read_bytes() for name, (package, path) in PHOTOGRAPHS.items()}
    drawings = {f"{name}, drawn": encode_png(draw_outlines(content)) for name, content in originals.items()}
    textures = {"Stripes": stripes(24), "Checkers": checkers(28), "Waves": waves(18)}
    pages = {"Page": page_of_text(), "Large print": page_of_text(columns=24, size=18), "Table": page_of_numbers()}
    groups: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("Photographs", "what the model was trained on", originals),
        ("Drawings", "another style", drawings),
        ("Textures", "nothing to name", {name: encode_png(each) for name, each in textures.items()}),
        ("Pages of text", "nothing to name", {name: encode_png(each) for name, each in pages.items()}),
    )
    return [Picture(name, about, title, content) for name, about, part in groups for title, content in part.items()]


def draw_outlines(photograph: bytes) -> Image.Image:
    """Return the outlines of a photograph, dark on white."""
    grey = open_image(io.BytesIO(photograph)).convert("L").filter(ImageFilter.GaussianBlur(1.5))
    edges = ImageOps.invert(grey.filter(ImageFilter.FIND_EDGES)).crop((2, 2, grey.width - 2, grey.height - 2))
    return ImageOps.autocontrast(edges, cutoff=(2, 40)).convert("RGB")


def stripes(width: int, side: int = 448) -> Image.Image:
    """Return slanted stripes of two colours."""
    y, x = np.indices((side, side))
    return _two_colours((x + y // 2) // width % 2 == 0, (180, 60, 50), (240, 225, 200))


def checkers(width: int, side: int = 448) -> Image.Image:
    """Return squares of two colours."""
    y, x = np.indices((side, side))
    return _two_colours((x // width + y // width) % 2 == 0, (40, 60, 110), (230, 230, 235))


def waves(width: int, side: int = 448) -> Image.Image:
    """Return rings that cross each other, grey."""
    y, x = np.indices((side, side))
    rings = np.sin(np.hypot(x - 90, y - 60) / width * 2) + np.sin(np.hypot(x - 400, y - 380) / width * 2)
    return Image.fromarray(((rings + 2) / 4 * 255).astype(np.uint8)).convert("RGB")


def page_of_text(columns: int = 60, size: int = 9, text: str = TEXT) -> Image.Image:
    """Return a page of print, ``columns`` letters wide."""
    words, lines = (text * 40).split(), [""]
    for word in words:
        lines.append(word) if len(lines[-1]) + len(word) >= columns else lines.append(f"{lines.pop()} {word}".strip())
    page, font = Image.new("RGB", (448, 448), "white"), ImageFont.load_default(size)
    ImageDraw.Draw(page).multiline_text((24, 24), "\n".join(lines[: 400 // (size + 5)]), "black", font, spacing=4)
    return page


def page_of_numbers(rows: int = 18, columns: int = 6) -> Image.Image:
    """Return a table of numbers."""
    page, font = Image.new("RGB", (448, 448), "white"), ImageFont.load_default(11)
    draw, numbers = ImageDraw.Draw(page), np.random.default_rng(0).integers(100, 9999, (rows, columns))
    for row, column in np.ndindex(rows, columns):
        draw.text((30 + 66 * column, 24 + 23 * row), f"{numbers[row, column]:,}", "black", font)
    for row in range(rows + 1):
        draw.line((24, 20 + 23 * row, 424, 20 + 23 * row), "grey")
    return page


def _two_colours(first: np.ndarray, one: tuple[int, int, int], two: tuple[int, int, int]) -> Image.Image:
    return Image.fromarray(np.where(first[..., None], one, two).astype(np.uint8))
