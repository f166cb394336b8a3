"""Whether weights were written to since thresholds were chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class Written:
    """The weights of a network and the statistics of its norms, and how often each had been written to; None: of nothing.

    Moving them does not count.
    """

    def __init__(self, network: nn.Module | None = None) -> None:
        self._seen = [] if network is None else [(each, each._version) for each in _weights(network)]

    def __reduce__(self) -> Any:  # copies have weights of their own
        return Written, ()

    def again(self) -> bool:
        """Whether any was written to since this was last asked."""
        for each, version in self._seen:  # with every prediction: no generator
            if each._version != version:
                self._seen = [(each, each._version) for each, _ in self._seen]
                return True
        return False


def _weights(network: nn.Module) -> Iterator[Tensor]:
    norms = (part for part in network.modules() if isinstance(part, _NormBase))
    for each in (*network.parameters(), *(buffer for norm in norms for buffer in norm.buffers(recurse=False))):
        if not each.is_inference():  # which do not count it
            yield each
