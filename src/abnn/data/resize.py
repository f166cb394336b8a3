"""Pictures in another size without torch, to the bit as torch has them: bilinear, antialiased, 8 bits in fixed point.

Each side is resized on its own, width first. Output i is a weighted mean of the inputs around c = (i + 1/2) s, s = inputs / outputs, with

    w_j = max(0, 1 - |j + 1/2 - c| / max(1, s)),    made to sum to 1.

Of 8 bits, weights are whole numbers of 2^-p with the largest p for which all fit into 15 bits, and each side is rounded to 8 bits.
"""

from __future__ import annotations

import numpy as np

MOST_PRECISION = 22


def resize(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return pictures [N, C, H, W], of 8 bits or floats, in another size."""
    x = _along_last(x, width) if x.shape[3] != width else x
    return _along_last(x.swapaxes(2, 3), height).swapaxes(2, 3) if x.shape[2] != height else x


def _along_last(x: np.ndarray, size: int) -> np.ndarray:
    places = _weights(x.shape[3], size)
    whole = x.dtype == np.uint8
    precision = _precision(max(float(weights.max()) for _, weights in places)) if whole else 0
    result = np.empty((*x.shape[:3], size))
    for place, (first, weights) in enumerate(places):
        if whole:
            weights = np.floor(weights * 2**precision + 0.5)
        result[..., place] = x[..., first : first + len(weights)] @ weights
    if not whole:
        return result.astype(x.dtype)
    return np.floor((result + 2 ** (precision - 1)) / 2**precision).clip(0, 255).astype(np.uint8)


def _weights(inputs: int, outputs: int) -> list[tuple[int, np.ndarray]]:
    """Return for each output the first input that counts, and the weights from there on."""
    scale = inputs / outputs
    support = max(1.0, scale)
    places = []
    for place in range(outputs):
        centre = scale * (place + 0.5)
        first, last = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), inputs)
        weights = np.maximum(0.0, 1 - np.abs((np.arange(first, last) - centre + 0.5) * (1 / support)))
        places.append((first, weights / weights.sum()))
    return places


def _precision(largest: float) -> int:
    return next((p for p in range(MOST_PRECISION) if int(0.5 + largest * 2 ** (p + 1)) >= 2**15), MOST_PRECISION)
