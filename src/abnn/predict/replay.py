"""Predictions of one shape as one CUDA graph: the kernels of a pass run without Python between them.

The first pass of a shape runs kernel by kernel. That also warms up what CUDA needs before a capture. The second pass is
captured with its own copy of input and noise, and replayed from then on. A graph reads parameters where they lie in
memory, so it sees updates in place. If a parameter or module was moved or replaced, passes are captured again.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.convolutions import VARIABLE
from abnn.bayes.layers import MeanField, is_nothing
from abnn.bayes.noise import Noise, map_noise, tensors_of
from abnn.errors import AbnnWarning
from abnn.model.calls import summary
from abnn.model.network import AttachedNetwork
from abnn.predict.capturing import capture
from abnn.predict.passes import Outputs, to_device

GRAPHS = 8
SHAPES = 64  # shapes whose number of passes is remembered


@dataclass
class _Graph:
    """A captured pass, with the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    x: Tensor
    noise: Noise  # the graph's own copy
    source: Noise  # the noise that was copied last
    outputs: Outputs

    def __call__(self, x: Tensor, noise: Noise) -> Outputs:
        if noise is not self.source:
            for old, new in zip(tensors_of(self.noise), tensors_of(noise)):
                if not is_nothing(old):
                    old.copy_(new, non_blocking=True)
            self.source = noise
        self.x.copy_(x, non_blocking=True)
        self.graph.replay()
        return self.outputs


class Replay:
    """The captured passes of one model. They share memory, so only the outputs of the last replay are valid."""

    def __init__(self) -> None:
        self.off = False
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._attempts: OrderedDict[Any, tuple[int, int]] = OrderedDict()  # passes since the last capture, and captures
        self._memory: Memory | None = None
        self._pool: Any = None

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(
        self,
        network: AttachedNetwork,
        make: Callable[[Noise], Callable[[Tensor], Outputs]],
        x: Tensor,
        noise: Noise,
        *flags: Any,
    ) -> Outputs:
        """Return the outputs of a pass on the network's device, from a graph if there is one.

        make   returns a pass with the noise of its argument
        flags  everything else that decides what the pass does
        """
        device = network.device
        if self.off or torch.cuda.is_current_stream_capturing():
            return make(noise)(to_device(x, device))
        if self._memory is None or not self._memory.is_that_of(network):
            self.clear()
            self._memory = Memory(network)
        if self._memory.is_hooked():
            return make(noise)(to_device(x, device))
        first = noise[0][0]
        assert first is not None
        key = x.shape, x.stride(), x.dtype, first.shape, is_nothing(first), flags, _modes()
        graph = self._graphs.get(key)
        if graph is None:
            passes, captures = self._attempts.pop(key, (0, 0))
            # A shape whose graph was dropped waits twice as long each time: most of the time must not go into captures.
            ready = passes >= 2**captures
            self._attempts[key] = (0, captures + 1) if ready else (passes + 1, captures)
            while len(self._attempts) > SHAPES:
                self._attempts.popitem(last=False)
            graph = self._capture(make, x, noise, device) if ready else None
            if graph is None:
                return self._run_kernels(make(noise), to_device(x, device))
            self._graphs[key] = graph
            while len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return graph(x, noise)

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        self._pool = self._memory = None

    def _run_kernels(self, run: Callable[[Tensor], Outputs], x: Tensor) -> Outputs:
        """Return the outputs of a pass, kernel by kernel.

        It uses the stream of captures, so CUDA sets that up for them.
        """
        stream = _stream(x.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _uncached():
            outputs = run(x)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(
        self, make: Callable[[Noise], Callable[[Tensor], Outputs]], x: Tensor, noise: Noise, device: torch.device
    ) -> _Graph | None:
        """Return a captured pass. If it cannot be captured, warn, switch off all captures and return None."""
        with torch.inference_mode(
            False
        ):  # the compiler treats inference tensors as another type, and users' inputs are none
            own_x, own_noise = torch.empty_like(x, device=device), map_noise(noise, _copy)
        own_x.copy_(x)
        run = make(own_noise)
        self._run_kernels(run, own_x)  # what compiles or is set up at first use must do so before the capture
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with capture(graph, _stream(device), self._pool), _uncached():
                outputs = run(own_x)
        except Exception as error:  # noqa: BLE001 - a network can do anything that no graph can hold
            self.clear()
            self.off = True
            warnings.warn(
                f"Predictions cannot be captured as one CUDA graph and run kernel by kernel ({summary(error)}).",
                AbnnWarning,
                stacklevel=6,
            )
            return None
        return _Graph(graph, own_x, own_noise, noise, outputs)


def _copy(noise: Tensor) -> Tensor:
    """Return a copy. The zero of mean weights is shared, since nobody writes to it."""
    return noise if is_nothing(noise) else noise.clone()


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of all models on a device. Libraries keep tens of megabytes of workspace for each stream."""
    return torch.cuda.Stream(device)


def _uncached() -> contextlib.AbstractContextManager[Any]:
    """Return the caller's autocast without its cache: a graph must not read casts that no longer exist at replay."""
    if not torch.is_autocast_enabled("cuda"):
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=torch.get_autocast_dtype("cuda"), cache_enabled=False)


class Memory:
    """The modules of a network, and the addresses of all of its parameters and buffers.

    It is compared with every prediction, so it must be fast: types and shapes are not compared, for a tensor that
    changes them moves.
    """

    def __init__(self, network: nn.Module) -> None:
        self.network, modules = network, list(network.modules())
        self.hooks = [hooks for module in modules for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self.owners: list[dict[str, Any]] = []
        for module in modules:
            # Buffers of Bayesian layers are the held draws, which predictions do not use.
            buffers = () if isinstance(module, MeanField) else (module._buffers,)
            self.owners += [owner for owner in (module._modules, module._parameters, *buffers) if owner]
        self.members = self._members()
        self.tensors = [member for member in self.members if isinstance(member, Tensor)]
        self.places = [tensor.data_ptr() for tensor in self.tensors]

    def _members(self) -> list[Any]:
        return list(itertools.chain.from_iterable(map(dict.values, self.owners)))

    def is_that_of(self, network: nn.Module) -> bool:
        """Return whether this is the same network, with the same modules and tensors at the same addresses."""
        members = self._members()
        same = network is self.network and len(members) == len(self.members)
        same = same and all(map(operator.is_, members, self.members))
        return same and self.places == [tensor.data_ptr() for tensor in self.tensors]

    def is_hooked(self) -> bool:
        """Return whether hooks are registered, which a graph would not call."""
        return any(self.hooks)


def _modes() -> tuple[Any, ...]:
    """Return the settings of torch and of this package that decide which kernels run."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    cudnn = torch.backends.cudnn
    flags = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled())
    return autocast, flags, _tf32(), os.environ.get(VARIABLE)


def _tf32() -> tuple[Any, ...]:
    """Return how torch computes in float32. Where it has the newer settings, reading the older ones may be an error."""
    backends = torch.backends
    if hasattr(backends, "fp32_precision"):
        return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
