"""Passes that predictions leave for later ones: making a pass copies every module, which takes longer than many a network runs.

A pass is used by one prediction at a time. It is used again where nothing has changed since: neither the network's modules nor the copies
hold anything else. Weights may change in place, for both have the same. Draws that are not remembered are not kept here either.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from operator import is_
from typing import Any

from torch import nn

from abnn.bayes.noise import Noise, NoiseCache
from abnn.model.attachments import ChainLink
from abnn.model.network import AttachedNetwork
from abnn.predict.passes import Outputs, PredictionPass

MOST = 8


class SparePasses:
    """The passes of one network that no prediction uses now; ``noise``: of its draws."""

    def __init__(self, noise: NoiseCache) -> None:
        self.noise = noise
        self._spare: list[_Spare] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._spare)

    def run(
        self, network: AttachedNetwork, make: Callable[[Noise], PredictionPass], noise: Noise, what: Any, x: Any
    ) -> Outputs:
        """Return what a pass says about inputs.

        make  makes a pass with noise
        what  tells passes of the same noise apart
        """
        if not self.noise.remembers(noise):
            return make(noise)(x)
        spare = self._take(noise, what)
        if spare is None or not spare.is_unchanged(network):
            spare = _Spare(network, make(noise), noise, what)
        outputs = spare.run(x)
        with self._lock:
            others = [each for each in self._spare if self.noise.remembers(each.noise)]
            self._spare = [*others[1 - MOST :], spare]
        return outputs

    def _take(self, noise: Noise, what: Any) -> _Spare | None:
        with self._lock:
            for place, each in enumerate(self._spare):
                if each.noise is noise and each.what == what:
                    return self._spare.pop(place)
        return None


class _Spare:
    """A pass, and what its modules and those of its network held when it was made."""

    def __init__(self, network: AttachedNetwork, run: PredictionPass, noise: Noise, what: Any) -> None:
        self.run, self.noise, self.what, self.root = run, noise, what, network.net
        self.chained = any(isinstance(part, ChainLink) for part in network.net.modules())  # these pass values on
        self.held = () if self.chained else tuple(map(Held, (network.net.modules(), run.run.twins.values())))

    def is_unchanged(self, network: AttachedNetwork) -> bool:
        return not self.chained and self.root is network.net and all(each.is_unchanged() for each in self.held)


class Held:
    """What modules hold: attributes, and what is in their lists and dicts; not whether tensors have the same values."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        parts = [part for module in modules for part in _containers(module.__dict__, set())]
        self.empty = [part for part in parts if not part]  # most are: hooks that nobody has set
        full = [(part, part.values if isinstance(part, dict) else part.__iter__) for part in parts if part]
        self.full = [(part, values, tuple(values())) for part, values in full]

    def is_unchanged(self) -> bool:
        return not any(self.empty) and all(
            len(part) == len(before) and all(map(is_, values(), before)) for part, values, before in self.full
        )


def _containers(value: Any, seen: set[int]) -> Iterator[Any]:
    """All lists and dicts that a value consists of, itself among them; not those of modules."""
    if id(value) in seen or not isinstance(value, (dict, list, tuple)):
        return
    seen.add(id(value))
    if not isinstance(value, tuple):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        yield from _containers(each, seen)
