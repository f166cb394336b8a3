"""What a network keeps between predictions: noise, passes, CUDA graphs, compiled passes.

None of it is saved with the model.

On the CPU each prediction has a pass of its own, so threads need no lock. Graphs and compiled passes have memory of
their own, which one prediction at a time may use.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.noise import Noise, NoiseCache
from abnn.model.network import AttachedNetwork
from abnn.predict.compiled_pass import CompiledPass
from abnn.predict.passes import Outputs, PredictionPass, to_device
from abnn.predict.replay import Replay
from abnn.predict.spare import SparePasses


class Runtime:
    """Noise, graphs and compiled passes of one network."""

    def __init__(self) -> None:
        self.noise, self.replay = NoiseCache(), Replay()
        self.spare = SparePasses(self.noise)
        self.compiled: CompiledPass | None = None
        self._lock = threading.RLock()
        self._done: torch.cuda.Event | None = None

    def __reduce__(self) -> Any:  # a copy of a model has its own, and compiles if the original did
        return _rebuild, (None if self.compiled is None else self.compiled.options,)

    @contextlib.contextmanager
    def turn(self, device: torch.device) -> Iterator[None]:
        """Inside, no other prediction uses the shared memory: not from another thread, not on another CUDA stream."""
        if device.type != "cuda" and self.compiled is None:
            yield
            return
        with self._lock:
            if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
                yield
                return
            with torch.cuda.device(device):
                if self._done is not None:
                    torch.cuda.current_stream().wait_event(self._done)
                try:
                    yield
                finally:
                    self._done = torch.cuda.current_stream().record_event()

    def runner(
        self, network: AttachedNetwork, noise: Noise, wanted: str, views: tuple[int, ...], replay: bool, repeated: bool
    ) -> Callable[[Any], Outputs]:
        """Return a function from inputs to the outputs of a pass.

        wanted    what it returns after the predictive distributions, see abnn.predict.passes.WANTED
        replay    whether passes on CUDA run as a graph
        repeated  whether the function is called more than once
        """
        passes: Callable[..., Any] = PredictionPass if self.compiled is None else self.compiled.with_noise
        make = partial(passes, network, wanted=wanted, views=views)
        if replay and network.device.type == "cuda":
            return lambda x: (
                self.replay(network, make, x, noise, wanted, views, self.compiled)
                if isinstance(x, Tensor)
                else make(noise)(to_device(x, network.device))
            )
        if self.compiled is None and not repeated:
            return lambda x: self.spare.run(network, make, noise, (wanted, views), to_device(x, network.device))
        run = make(noise)
        if isinstance(run, PredictionPass) and network.device.type == "cpu":
            run.run.keep_weights()
        return lambda x: run(to_device(x, network.device))


def runtime_of(network: AttachedNetwork) -> Runtime:
    """Return the runtime of a network. The first call creates it."""
    return network.__dict__.setdefault("_runtime", Runtime())


def _rebuild(options: dict[str, Any] | None) -> Runtime:
    runtime = Runtime()
    runtime.compiled = None if options is None else CompiledPass(options)
    return runtime
