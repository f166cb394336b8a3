"""Images to click on the page: the embedded digits, or a folder of one's own."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from abnn.data.images import EXTENSIONS, encode_png
from abnn.errors import InputError, explain, readable
from abnn.serve.images import SIGNATURES, kind_of

Sample = dict[str, str]  # in the form of abnn.serve.schema.SampleImage
SAMPLES = 6  # of each tier
MOST_FILES, MOST_BYTES = 36, 16 * 2**20
TIERS = {
    "id": ("Handwritten digits", "what the model was trained on", "Handwritten {}"),
    "semi": ("Printed digits", "another style, still readable", "Printed {}"),
    "full": ("Photographs", "nothing to read", "Photograph, patch {}"),
}


def make_sample(group: str, about: str, title: str, content: bytes) -> Sample:
    """Return one image from the bytes of its file; an error if the server would not take it."""
    if (kind := kind_of(content)) is None:
        accepted = f"images of these types: {', '.join(SIGNATURES)}"
        raise InputError(explain("examples", f"{title}, which is no such image", accepted))
    text = base64.b64encode(content).decode()
    return {"group": group, "about": about, "title": title, "type": f"image/{kind.lower()}", "content": text}


def folder_samples(folder: Path) -> list[Sample]:
    """Return the images of a folder, those of each sub-folder as a group. None, too many or too large ones are an error."""
    if not folder.is_dir():
        raise InputError(explain("--examples", f"{folder}, which is no folder", "a folder of images"))
    files = sorted(each for each in folder.rglob("*") if each.suffix.lower() in EXTENSIONS and each.is_file())
    size = sum(each.stat().st_size for each in files)
    if not 0 < len(files) <= MOST_FILES or size > MOST_BYTES:
        accepted = f"1 to {MOST_FILES} images with {MOST_BYTES >> 20} MiB in all"
        raise InputError(explain("--examples", f"{folder} with {len(files)} images, {size / 2**20:.1f} MiB", accepted))

    def group(file: Path) -> str:
        parts = file.relative_to(folder).parts
        return readable(parts[0]) if len(parts) > 1 else "Examples"

    return [make_sample(group(each), "", readable(each.stem), each.read_bytes()) for each in files]


@lru_cache(maxsize=1)
def digit_samples() -> Sequence[Sample]:
    """Return images of the three test tiers to click, taken without looking at what any model says about them.

    A 0, a 1, a 2, ... from evenly spaced places of the digits, and evenly spaced photographs.
    """
    from abnn.data.digits import load_digits

    samples, data = [], load_digits(0)
    for tier, part in {"id": data.test, "semi": data.semi, "full": data.full}.items():
        group, about, title = TIERS[tier]
        for number in range(SAMPLES):
            places = np.flatnonzero(part.y.numpy() == number)
            if len(places):
                row, name = places[len(places) * number // SAMPLES], title.format(number)
            else:
                row, name = (number + 1) * (len(part.y) - 1) // (SAMPLES + 1), title.format(number + 1)
            png = encode_png((part.x[row, 0] * 255).round().byte().numpy())
            samples.append(make_sample(group, about, name, png))
    return samples
