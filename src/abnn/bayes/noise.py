"""The noise of weight draws: the noise that layers hold, the noise of a seed, and a cache between predictions.

Draws of a seed are made on the CPU, so that they are the same on every device. A prediction of a small batch would
spend most of its time on that, so the noise of the last few requests is cached. Cached noise is never changed in place:
passes of several threads may read it at once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.layers import MeanField

Noise = list[tuple[Tensor | None, ...]]
"""Noise of weight and bias for each layer, [uses, S, ...]."""
ALWAYS, MOST = 4, 32
"""Requests that are cached whatever their size, and at most. A prediction in parts needs two; a hundred draws come in
ten parts, again and again."""
ROOM, ROOM_OF_HOST = 2**26, 2**28
"""Bytes that more than ALWAYS requests may take: of the device, and of the host, which keeps a copy of what it has
sent."""


def tensors_of(noise: Noise) -> list[Tensor]:
    """Return all tensors in a fixed order."""
    return [part for pair in noise for part in pair if part is not None]


def map_noise(noise: Noise, function: Callable[[Tensor], Tensor]) -> Noise:
    """Return ``function`` of every tensor, in the same order."""
    return [tuple(None if part is None else function(part) for part in pair) for pair in noise]


def pick_draws(noise: Noise, draws: slice) -> Noise:
    """Return the noise of the draws in a slice, as views of the same memory."""
    return map_noise(noise, lambda part: part[:, draws])


def held_noise(layers: Sequence[MeanField]) -> Noise:
    """Return the noise that the layers hold now."""
    return [(layer.weight_noise, layer.bias_noise) for layer in layers]


def hold(layers: Sequence[MeanField], noise: Noise) -> None:
    """Let the layers hold this noise."""
    for layer, (weight, bias) in zip(layers, noise):
        assert weight is not None
        layer.weight_noise, layer.bias_noise = weight, bias


def no_noise(layers: Sequence[MeanField], draws: int = 1) -> Noise:
    """Return the noise of draws with mean weights: a single zero, expanded.

    Layers recognise it by its strides of zero.
    """

    def zero(part: Tensor) -> Tensor:
        return part.new_zeros(()).as_strided((len(part), draws, *part.shape[2:]), (0,) * part.ndim)

    return map_noise(held_noise(layers), zero)


def seeded_noise(layers: Sequence[MeanField], draws: range, seed: int) -> Noise:
    """Return the noise of ``draws`` on the CPU. Draw s depends on (seed, s) alone."""
    generators = [torch.Generator().manual_seed(draw_seed(seed, index)) for index in draws]
    with torch.inference_mode(False), torch.no_grad():
        return [layer.seeded_noise(generators) for layer in layers]


def draw_seed(seed: int, index: int) -> int:
    """Return the seed of one draw, from that of all draws and the draw's number."""
    digest = hashlib.sha256(f"{seed}:{index}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


class NoiseCache:
    """A cache of the noise of the last requests, on the device of the layers."""

    def __init__(self) -> None:
        self._noise: OrderedDict[Any, Noise] = OrderedDict()
        self._host_noise: OrderedDict[Any, Noise] = OrderedDict()  # copies of what was sent to a device

    def __reduce__(self) -> Any:  # a copy of a model has a cache of its own
        return NoiseCache, ()

    def __len__(self) -> int:
        return len(self._noise)

    def get(self, layers: Sequence[MeanField], draws: range, seed: int, fresh: bool = False) -> Noise:
        """Return the noise of the draws of a seed.

        fresh  only this call needs it: it is not cached, and on CUDA the device makes it
        """
        device = layers[0].weight_noise.device
        if fresh and device.type == "cuda":
            return _noise_on_device(layers, draws, seed)

        def make() -> Noise:
            return seeded_noise(layers, draws, seed)

        def send() -> Noise:
            noise = _cached(self._host_noise, layers, (draws, seed), make, ROOM_OF_HOST)
            return map_noise(noise, lambda part: part.to(device))

        if fresh:
            return map_noise(make(), lambda part: part.to(device))
        return _cached(self._noise, layers, (draws, seed), make if device.type == "cpu" else send, ROOM)

    def none(self, layers: Sequence[MeanField], draws: int) -> Noise:
        """Return the noise of ``draws`` draws with mean weights, see :func:`no_noise`."""
        return _cached(self._noise, layers, draws, lambda: no_noise(layers, draws), ROOM)

    def remembers(self, noise: Noise) -> bool:
        """Return whether the cache holds this very object, so that the same request returns it again."""
        return any(each is noise for each in list(self._noise.values()))


def _cached(
    store: OrderedDict[Any, Noise], layers: Sequence[MeanField], request: Any, make: Callable[[], Noise], room: int
) -> Noise:
    """Return the noise that the store has for a request, else that of ``make``. The oldest goes when it is too much."""
    weight = layers[0].weight_noise
    key = request, weight.device, weight.dtype, tuple(layer.weight_noise.shape[2:] for layer in layers)
    noise = store.get(key)
    if noise is None:
        with torch.inference_mode(False), torch.no_grad():
            noise = make()
        store[key] = noise
        while len(store) > MOST or (len(store) > ALWAYS and _bytes(list(store.values())) > room):
            store.popitem(last=False)
    return noise


def _bytes(entries: list[Noise]) -> int:
    return sum(part.untyped_storage().nbytes() for noise in entries for part in tensors_of(noise))


def _noise_on_device(layers: Sequence[MeanField], draws: range, seed: int) -> Noise:
    """Return the noise of ``draws``, made on the device of the layers. It differs from that of the CPU."""
    with torch.inference_mode(False), torch.no_grad():
        noise = map_noise(held_noise(layers), lambda part: part.new_empty(len(part), len(draws), *part.shape[2:]))
        generator = torch.Generator(noise[0][0].device).manual_seed(draw_seed(seed, draws.start))  # type: ignore[union-attr]
        return map_noise(noise, lambda part: part.normal_(generator=generator))
