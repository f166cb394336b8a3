"""Detects whether weights were written to since thresholds were chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class WriteCounts:
    """How often each weight of a network, and each statistic of its norms, was written to.

    Moving them does not count.

    network  None: nothing is watched
    """

    def __init__(self, network: nn.Module | None = None) -> None:
        self._counts = [] if network is None else [(each, each._version) for each in _weights(network)]

    def __reduce__(self) -> Any:  # copies have weights of their own
        return WriteCounts, ()

    def have_grown(self) -> bool:
        """Return whether any was written to since the last call that returned True, or since the start."""
        for each, version in self._counts:  # a loop: this runs with every prediction
            if each._version != version:
                self._counts = [(each, each._version) for each, _ in self._counts]
                return True
        return False


def _weights(network: nn.Module) -> Iterator[Tensor]:
    norms = (part for part in network.modules() if isinstance(part, _NormBase))
    for each in (*network.parameters(), *(buffer for norm in norms for buffer in norm.buffers(recurse=False))):
        if not each.is_inference():  # inference tensors do not count writes
            yield each
