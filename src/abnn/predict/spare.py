"""A pool of passes that predictions use again: making one copies every module, which can take longer than a pass.

One prediction at a time uses a pass. It can be used again if neither the network's modules nor their copies in the pass
hold other objects than before. Weights may change in place, since both share them. Passes whose noise is not in the
cache of noise are not kept.
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

MOST = 8  # passes


class SparePasses:
    """The passes of one network that no prediction uses now.

    noise  the cache of the noise of its draws
    """

    def __init__(self, noise: NoiseCache) -> None:
        self.noise = noise
        self._passes: list[_SparePass] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._passes)

    def run(
        self, network: AttachedNetwork, make: Callable[[Noise], PredictionPass], noise: Noise, kind: Any, x: Any
    ) -> Outputs:
        """Return the outputs of a pass for inputs.

        make  returns a new pass with the noise of its argument
        kind  tells passes with the same noise apart
        """
        if not self.noise.remembers(noise):
            return make(noise)(x)
        spare = self._take(noise, kind)
        if spare is None or not spare.is_unchanged(network):
            spare = _SparePass(network, make(noise), noise, kind)
        outputs = spare.run(x)
        with self._lock:
            others = [each for each in self._passes if self.noise.remembers(each.noise)]
            self._passes = [*others[1 - MOST :], spare]
        return outputs

    def _take(self, noise: Noise, kind: Any) -> _SparePass | None:
        """Remove a pass of this kind from the pool and return it; None if there is none."""
        with self._lock:
            for place, each in enumerate(self._passes):
                if each.noise is noise and each.kind == kind:
                    return self._passes.pop(place)
        return None


class _SparePass:
    """A pass, with snapshots of its modules and of its network's from when it was made."""

    def __init__(self, network: AttachedNetwork, run: PredictionPass, noise: Noise, kind: Any) -> None:
        self.run, self.noise, self.kind, self.root = run, noise, kind, network.net
        self.has_chain = any(isinstance(part, ChainLink) for part in network.net.modules())  # links pass values on
        modules = () if self.has_chain else (network.net.modules(), run.run.twins.values())
        self.snapshots = tuple(map(Snapshot, modules))

    def is_unchanged(self, network: AttachedNetwork) -> bool:
        return not self.has_chain and self.root is network.net and all(each.is_unchanged() for each in self.snapshots)


class Snapshot:
    """The objects that modules hold: attributes, and items of their lists and dicts. Values of tensors do not count."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        containers = [each for module in modules for each in _containers(module.__dict__, set())]
        self.empty = [each for each in containers if not each]  # most are empty: hooks that nobody has set
        full = [(each, each.values if isinstance(each, dict) else each.__iter__) for each in containers if each]
        self.full = [(each, values, tuple(values())) for each, values in full]

    def is_unchanged(self) -> bool:
        """Return whether all containers hold the same objects as before."""
        return not any(self.empty) and all(
            len(each) == len(before) and all(map(is_, values(), before)) for each, values, before in self.full
        )


def _containers(value: Any, visited: set[int]) -> Iterator[Any]:
    """Yield all lists and dicts inside a value, itself among them, but not those of modules inside it."""
    if id(value) in visited or not isinstance(value, (dict, list, tuple)):
        return
    visited.add(id(value))
    if not isinstance(value, tuple):
        yield value
    for each in value.values() if isinstance(value, dict) else value:
        yield from _containers(each, visited)
