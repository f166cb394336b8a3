"""The noise of draws: holding other draws for a while, and those of a prediction, kept from one prediction to the next.

Draws that belong to a seed are made on the CPU, so that they are the same on every device; a prediction of small batches
would spend most of its time on that. For each number of draws, with and without one of mean weights ahead of them, the noise
has one place in memory, which is filled anew for other draws, so that captured passes find it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.layers import MeanField

Noise = list[tuple[Tensor | None, ...]]
"""Noise of weight and bias for each layer, [uses, S, ...]."""
PLACES = 4  # how many of these are kept: a prediction in parts needs two
HOST_BYTES = 2**28  # noise that is kept on the host for a model on a device


def parts_of(noise: Noise) -> list[Tensor]:
    return [part for pair in noise for part in pair if part is not None]


def changed(noise: Noise, change: Callable[[Tensor], Tensor]) -> Noise:
    """The same of every part."""
    return [tuple(None if part is None else change(part) for part in pair) for pair in noise]


def some_of(noise: Noise, wanted: slice) -> Noise:
    """That of some draws, in place."""
    return changed(noise, lambda part: part[:, wanted])


def hold_noise(layers: Sequence[MeanField]) -> Noise:
    """The noise of the held draws, to be put back with :func:`set_noise`."""
    return [(layer.weight_noise, layer.bias_noise) for layer in layers]


def set_noise(layers: Sequence[MeanField], noise: Noise) -> None:
    for layer, (weight, bias) in zip(layers, noise):
        assert weight is not None
        layer.weight_noise = weight
        layer.bias_noise = bias


@contextlib.contextmanager
def holding(layers: Sequence[MeanField], noise: Noise) -> Iterator[None]:
    """Inside, other draws are held."""
    held = hold_noise(layers)
    set_noise(layers, noise)
    try:
        yield
    finally:
        set_noise(layers, held)


@contextlib.contextmanager
def without_noise(layers: Sequence[MeanField]) -> Iterator[None]:
    """Inside, one draw is held that has mean weights."""
    made = [layer.made for layer in layers]
    with holding(layers, changed(some_of(hold_noise(layers), slice(1)), torch.zeros_like)):
        for layer in layers:
            layer.made = None
        try:
            yield
        finally:
            for layer, weights in zip(layers, made):
                layer.made = weights


class KeptDraws:
    """Noise by number of draws, of the draws that were asked for last; on the host more, for a model on a device."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[int, bool], tuple[Any, Noise]] = OrderedDict()
        self._host: OrderedDict[Any, Noise] = OrderedDict()

    def __reduce__(self) -> Any:  # copies of a model make their own
        return KeptDraws, ()

    def get(
        self, layers: Sequence[MeanField], wanted: range, seed: int, fresh: bool = False, mean: bool = False
    ) -> Noise:
        """The noise of the draws ``wanted`` of a seed.

        fresh  of draws that only this call needs, on any device
        mean   ahead of them one more, without noise: mean weights
        """
        key, place = (seed, wanted, fresh), (len(wanted), mean)
        known, noise = self._places.pop(place, (None, []))
        if not _fits(noise, layers):
            known, noise = None, _empty(layers, mean + len(wanted))
            for part in parts_of(some_of(noise, slice(int(mean)))):
                part.zero_()
        if known != key:
            self._fill(some_of(noise, slice(int(mean), None)), layers, wanted, seed, fresh)
        self._places[place] = key, noise
        while len(self._places) > PLACES:
            self._places.popitem(last=False)
        return noise

    def _fill(self, noise: Noise, layers: Sequence[MeanField], wanted: range, seed: int, fresh: bool) -> None:
        device = layers[0].weight_mean.device
        with torch.inference_mode(False), torch.no_grad():
            if device.type == "cpu":
                make(noise, layers, wanted, seed)
            elif fresh:
                generator = torch.Generator(device).manual_seed(draw_seed(seed, wanted.start))
                for part in parts_of(noise):
                    part.normal_(generator=generator)
            else:
                for part, made in zip(parts_of(noise), parts_of(self._made(layers, wanted, seed))):
                    part.copy_(made, non_blocking=True)

    def _made(self, layers: Sequence[MeanField], wanted: range, seed: int) -> Noise:
        """Noise on the host, from where it can be copied without waiting."""
        key = seed, wanted
        noise = self._host.pop(key, None)
        if noise is None or not _fits(noise, layers, torch.device("cpu")):
            noise = _empty(layers, len(wanted), torch.device("cpu"))
            make(noise, layers, wanted, seed)
        self._host[key] = noise
        while len(self._host) > 1 and sum(map(size, self._host.values())) > HOST_BYTES:
            self._host.popitem(last=False)
        return noise


def make(noise: Noise, layers: Sequence[MeanField], wanted: range, seed: int) -> None:
    """Fill ``noise`` on the CPU: draw s depends on (seed, s) alone."""
    generators = [torch.Generator().manual_seed(draw_seed(seed, index)) for index in wanted]
    for layer, pair in zip(layers, noise):
        layer.make_noise(generators, pair)


def draw_seed(seed: int, index: int) -> int:
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def size(noise: Noise) -> int:
    """Bytes."""
    return sum(part.numel() * part.element_size() for part in parts_of(noise))


def _fits(noise: Noise, layers: Sequence[MeanField], device: torch.device | None = None) -> bool:
    """Whether the model still is where it was, and of the same type and shape."""
    parts, held = parts_of(noise), parts_of(hold_noise(layers))
    return len(parts) == len(held) and all(
        part.device == (device or like.device)
        and part.dtype == like.dtype
        and part.shape[0] == like.shape[0]
        and part.shape[2:] == like.shape[2:]
        for part, like in zip(parts, held)
    )


def _empty(layers: Sequence[MeanField], draws: int, device: torch.device | None = None) -> Noise:
    """Room for so many draws; on the host it does not move, where there is a device to copy it to."""

    def like(part: Tensor | None) -> Tensor | None:
        if part is None:
            return None
        shape, pinned = (part.shape[0], draws, *part.shape[2:]), device is not None and part.is_cuda
        return torch.empty(shape, dtype=part.dtype, device=device or part.device, pin_memory=pinned)

    with torch.inference_mode(False):
        return [(like(layer.weight_noise), like(layer.bias_noise)) for layer in layers]
