"""Images of each tier to click, for the embedded digits."""

from __future__ import annotations

import base64
from functools import lru_cache

import numpy as np

from abnn.data.digits import Labelled, load_digits
from abnn.serve.images import encode_png

NUMBER = 6


@lru_cache(maxsize=1)
def digit_samples() -> tuple[dict[str, str], ...]:
    """Inputs of the three test tiers, taken without looking at what any model says about them.

    A 0, a 1, a 2, ... from evenly spaced places of the digits, and evenly spaced photographs.
    """
    data = load_digits(0)
    tiers = (("id", "Handwritten", data.test), ("semi", "Printed", data.semi), ("full", "Photograph", data.full))
    return tuple(sample for tier, title, part in tiers for sample in _of(tier, title, part))


def _of(tier: str, title: str, part: Labelled) -> list[dict[str, str]]:
    labels = part.y.tolist()
    if -1 in labels:
        rows = np.linspace(0, len(labels) - 1, NUMBER + 2).astype(int)[1:-1].tolist()
        names = [f"{title}, patch {number}" for number in range(1, NUMBER + 1)]
    else:
        places = [[row for row, label in enumerate(labels) if label == digit] for digit in range(NUMBER)]
        rows = [each[len(each) * digit // NUMBER] for digit, each in enumerate(places)]
        names = [f"{title} {digit}" for digit in range(NUMBER)]
    pixels = [(part.x[row, 0] * 255).round().byte().numpy() for row in rows]
    pictures = [base64.b64encode(encode_png(each)).decode() for each in pixels]
    return [{"tier": tier, "title": name, "png": png} for name, png in zip(names, pictures)]
