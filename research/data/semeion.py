"""SEMEION: 1,593 handwritten digits, 16x16, of black and white alone."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from abnn.data.arrays import MemorySource
from abnn.data.digits import CLASS_NAMES
from abnn.errors import FileFormatError, unknown
from abnn.files import write_bytes
from abnn.networks.vision import torchvision


def open_semeion(text: str, name: str, root: Path) -> MemorySource:
    """Return "semeion/test" from ``<root>/semeion/test.npz``; torchvision downloads it if it is not there.

    Values of 0 and 1, as the set is published, become 0 and 255.
    """
    if text != "semeion/test":
        raise unknown("source", text, ["semeion/test"])
    file = root / "semeion" / "test.npz"
    if not file.is_file():
        try:
            raw = torchvision().datasets.SEMEION(str(root / "downloads"), download=True)
        except (OSError, RuntimeError) as error:
            raise FileFormatError(f"semeion/test could not be downloaded ({error}); try again.") from error
        content = io.BytesIO()
        np.savez(content, images=raw.data.astype(np.uint8), labels=raw.labels.astype(np.int64))
        write_bytes(file, content.getvalue())
    with np.load(file) as arrays:
        pictures = (arrays["images"] > 0) * np.uint8(255)
        return MemorySource(pictures, arrays["labels"].astype(np.int64), name, CLASS_NAMES)
