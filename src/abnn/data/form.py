"""What a model takes as input, and how pictures and rows of features are brought into that form.

A picture becomes grey or RGB first, is then cut and resized, then scaled to [0, 1], then normalised as the model was trained.
Pictures of 8 bits stay in 8 bits until they have their size, as in the paper's experiments.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from abnn.errors import InputError, explain

MOST_PRECISION = 22  # bits of the weights that resize() gives pictures of 8 bits


@dataclass(frozen=True)
class InputForm:
    """The form of one model's inputs; in uint8, pictures of 8 bits stay 0..255, neither scaled nor normalised.

    Inputs are tensors where ``dtype`` is one of torch, and arrays where it is one of numpy, as exported models have it.
    """

    shape: tuple[int, ...]  # (channels, height, width) for pictures, (features,) for rows of a table
    dtype: Any = None  # of torch or of numpy; None: torch.float32
    mean: tuple[float, ...] | None = None  # of each channel, subtracted after scaling to [0, 1]; None: left as it is
    std: tuple[float, ...] | None = None  # of each channel, divided by
    crop: float | None = None  # the share to cut from the middle of a picture, undistorted; None: all of it, squeezed

    def __post_init__(self) -> None:
        if self.dtype is None:
            import torch

            object.__setattr__(self, "dtype", torch.float32)

    @classmethod
    def of(cls, model: Any) -> InputForm:
        """Return the form of a model's inputs, with the preprocessing that was saved as ``extra["preprocess"]``."""
        shape, dtype = tuple(model.input_shape), model.input_dtype
        pictures = len(shape) == 3 and shape[0] in (1, 3)
        if "float" not in str(dtype) or not (pictures or len(shape) == 1):
            accepted = "a floating-point type, (1 or 3, height, width) for pictures or (features,) for tables"
            fix = "Evaluate it from Python with abnn.evaluate.evaluate_set."
            raise InputError(explain("model", f"inputs of shape {shape} and {dtype}", accepted, fix))
        return cls(shape, dtype, *_preprocess(getattr(model, "extra", {}).get("preprocess"), shape[0]))

    @property
    def kind(self) -> str:
        return "images" if len(self.shape) == 3 else "features"

    @property
    def number(self) -> np.dtype:
        """The type of numpy that inputs are computed in."""
        name = str(self.dtype).removeprefix("torch.")
        return np.dtype("float32" if name == "bfloat16" else name)  # which numpy does not know

    def images(self, pictures: np.ndarray) -> Any:
        """Return pictures as inputs; they are [N, H, W] or [N, H, W, 1 or 3], uint8 of 0..255 or floats in [0, 1]."""
        x = pictures[:, None] if pictures.ndim == 3 else np.moveaxis(pictures, 3, 1)
        if x.shape[1] == 3 and self.shape[0] == 1:
            x = grey(x)
        if self.crop is not None:
            x = self._middle(x, self.crop)
        if x.shape[2:] != self.shape[1:]:
            x = self._resized(x)
        x = np.broadcast_to(x, (len(x), *self.shape))
        if self.number == np.uint8:
            assert pictures.dtype == np.uint8
            return self.inputs(x)
        x = np.ascontiguousarray(x).astype(self.number)  # bytes are put in order faster than numbers
        if pictures.dtype == np.uint8:
            x /= self.number.type(255)
        return self.inputs(self._normalised(x))

    def features(self, rows: np.ndarray) -> Any:
        """Return rows of a table, [N, features], as inputs."""
        return self.inputs(self._normalised(rows.astype(self.number)))

    def inputs(self, x: np.ndarray) -> Any:
        """Return an array as the model takes it."""
        x = np.require(x, requirements=["C", "W"])  # torch warns of memory that cannot be written to
        if isinstance(self.dtype, np.dtype):
            return x
        import torch

        return torch.from_numpy(x).to(self.dtype)

    def join(self, parts: Sequence[Any]) -> Any:
        """Return several batches of inputs as one; an empty one for none."""
        if not parts:
            return self.inputs(np.zeros((0, *self.shape), self.number))
        if isinstance(self.dtype, np.dtype):
            return np.concatenate(parts)
        import torch

        return torch.cat(list(parts))

    def pictures(self, x: Any) -> np.ndarray:
        """Return inputs as pictures again, uint8 [N, H, W] or [N, H, W, 3]; rows of a table give none."""
        if self.kind == "features":
            return np.zeros((0, 1, 1), np.uint8)
        x = x if isinstance(x, np.ndarray) else x.cpu().numpy()
        if self.mean is not None:
            x = x * self._per_channel(self.std) + self._per_channel(self.mean)
        pictures = (x * x.dtype.type(255)).round().clip(0, 255).astype(np.uint8)
        return pictures[:, 0] if self.shape[0] == 1 else np.moveaxis(pictures, 1, -1)

    def _middle(self, x: np.ndarray, share: float) -> np.ndarray:
        """Return the largest part in the middle with the proportions of an input, times ``share``."""
        scale = share * min(have / want for have, want in zip(x.shape[2:], self.shape[1:]))
        sides = [max(1, round(scale * want)) for want in self.shape[1:]]
        top, left = ((have - side) // 2 for have, side in zip(x.shape[2:], sides))
        return x[:, :, top : top + sides[0], left : left + sides[1]]

    def _resized(self, x: np.ndarray) -> np.ndarray:
        """Return pictures in the size of inputs, by torch where inputs are its tensors: that is faster, and the same."""
        if isinstance(self.dtype, np.dtype):
            return resize(x, *self.shape[1:])
        import torch
        from torch.nn.functional import interpolate

        picture = torch.from_numpy(np.require(x, requirements=["C", "W"]))
        return interpolate(picture, size=self.shape[1:], mode="bilinear", antialias=True).numpy()

    def _normalised(self, x: np.ndarray) -> np.ndarray:
        return x if self.mean is None else (x - self._per_channel(self.mean)) / self._per_channel(self.std)

    def _per_channel(self, values: tuple[float, ...] | None) -> np.ndarray:
        return np.array(values, self.number).reshape(-1, *[1] * (len(self.shape) - 1))


def grey(x: np.ndarray) -> np.ndarray:
    """Return luma by ITU-R BT.601, [N, 1, H, W], of [N, 3, H, W]; 8 bits as Pillow does it, in 16-bit fixed point."""
    if x.dtype.kind == "f":
        return (x * np.array([0.299, 0.587, 0.114], x.dtype).reshape(3, 1, 1)).sum(1, keepdims=True)
    red, green, blue = x.astype(np.int32).transpose(1, 0, 2, 3)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16).astype(np.uint8)[:, None]


def _preprocess(saved: Any, channels: int) -> tuple[Any, Any, float | None]:
    """Return mean and standard deviation of each channel, or None for both, and the share to cut, or None."""
    if not saved:
        return None, None, None
    named = isinstance(saved, dict) and {"mean", "std"} <= set(saved) <= {"mean", "std", "crop"}
    mean, std, crop = (saved["mean"], saved["std"], saved.get("crop")) if named else ((), (), None)
    shares = crop is None or (_are_numbers([crop], 1) and 0 < crop <= 1)
    if not (_are_numbers(mean, channels) and _are_numbers(std, channels) and min(std) > 0 and shares):
        accepted = (
            "{'mean': [...], 'std': [...]} with one number for each channel, the latter positive, and, where the middle of "
            "pictures is to be cut out, 'crop' above 0 and at most 1"
        )
        fix = f"This model has {channels} channels. Save it again with extra={{'preprocess': ...}}, or without it."
        raise InputError(explain("preprocess of the model", repr(saved), accepted, fix))
    return tuple(map(float, mean)), tuple(map(float, std)), crop


def _are_numbers(values: Any, count: int) -> bool:
    right = isinstance(values, list | tuple) and len(values) == count
    return right and all(isinstance(each, int | float) and math.isfinite(each) for each in values)


def resize(x: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return pictures [N, C, H, W], of 8 bits or floats, in another size without torch, to the bit as torch has them.

    Bilinear and antialiased. Each side is resized on its own, width first. Output i is a weighted mean of the inputs around
    c = (i + 1/2) s, s = inputs / outputs, with w_j = max(0, 1 - |j + 1/2 - c| / max(1, s)), made to sum to 1. Of 8 bits, weights
    are whole numbers of 2^-p with the largest p for which all fit into 15 bits, and each side is rounded to 8 bits.
    """
    x = _along_last(x, width) if x.shape[3] != width else x
    return _along_last(x.swapaxes(2, 3), height).swapaxes(2, 3) if x.shape[2] != height else x


def _along_last(x: np.ndarray, size: int) -> np.ndarray:
    places = _weights(x.shape[3], size)
    whole = x.dtype == np.uint8
    largest = max(float(weights.max()) for _, weights in places)
    bits = range(MOST_PRECISION)
    precision = next((p for p in bits if int(0.5 + largest * 2 ** (p + 1)) >= 2**15), MOST_PRECISION)
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
