"""Predictions of one shape as one CUDA graph: the kernels of a pass run without Python between them.

The first pass of a shape runs kernel by kernel, which also warms up what CUDA needs before a capture; the second is captured
with its own copy of the input, and replayed from then on. A graph reads parameters and noise where they lie in memory, so
that updates in place and other draws are seen; if anything was moved or replaced, passes are captured anew.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import MeanField
from abnn.bayes.noise import Noise
from abnn.bayes.strategy import VARIABLE
from abnn.errors import AbnnWarning
from abnn.model.blocks import summary
from abnn.predict.passes import Outputs, moved

GRAPHS = 8
SHAPES = 64  # how many shapes are remembered as seen before


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    x: Tensor
    noise: Noise
    outputs: Outputs


class Replay:
    """The captured passes of one model. They share their memory, so only the outputs of the last replay are valid."""

    def __init__(self) -> None:
        self.off = False
        self._lock = threading.RLock()
        self._graphs: OrderedDict[Any, _Captured] = OrderedDict()
        self._seen: OrderedDict[Any, tuple[int, int]] = OrderedDict()  # passes since the last capture, and captures
        self._signature: list[Any] | None = None
        self._pool: Any = None
        self._done: torch.cuda.Event | None = None

    def __reduce__(self) -> Any:  # copies of a model capture their own
        return Replay, ()

    def __len__(self) -> int:
        return len(self._graphs)

    @contextlib.contextmanager
    def turn(self, device: torch.device) -> Iterator[None]:
        """One prediction after another, from whatever threads and on whatever streams: they use the same noise, inputs and
        outputs."""
        with self._lock:
            yield from self._on_streams(device)

    def _on_streams(self, device: torch.device) -> Iterator[None]:
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

    def __call__(
        self, modules: Iterable[nn.Module], run: Callable[[Tensor], Outputs], x: Tensor, noise: Noise, *flags: Any
    ) -> Outputs:
        """``run(x)`` on the noise's device, by a graph where there is one.

        modules  all whose parameters and buffers ``run`` reads
        flags    what else decides what ``run`` does
        """
        first = noise[0][0]
        assert first is not None
        signature = None if self.off or torch.cuda.is_current_stream_capturing() else _signature(modules)
        if signature is None:
            return run(moved(x, first.device))
        if signature != self._signature:
            self.clear()
            self._signature = signature
        key = x.shape, x.stride(), x.dtype, first.shape, flags, _modes()
        captured = self._graphs.get(key)
        if captured is None or captured.noise is not noise:
            self._graphs.pop(key, None)
            uses, captures = self._seen.pop(key, (0, 0))
            # A shape whose graph had to make room waits twice as long each time: captures must not take over.
            ready = uses >= 2**captures
            self._seen[key] = (0, captures + 1) if ready else (uses + 1, captures)
            while len(self._seen) > SHAPES:
                self._seen.popitem(last=False)
            captured = self._capture(run, x, noise, first.device) if ready else None
            if captured is None:
                return self._aside(run, moved(x, first.device))
            self._graphs[key] = captured
            while len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        captured.x.copy_(x, non_blocking=True)
        captured.graph.replay()
        return captured.outputs

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        self._pool = self._signature = None

    def _aside(self, run: Callable[[Tensor], Outputs], x: Tensor) -> Outputs:
        """Kernel by kernel, on the stream that captures use: what CUDA sets up for a stream is then ready for them."""
        stream = _stream(x.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), _uncached():
            outputs = run(x)
        torch.cuda.current_stream().wait_stream(stream)
        return outputs

    def _capture(
        self, run: Callable[[Tensor], Outputs], x: Tensor, noise: Noise, device: torch.device
    ) -> _Captured | None:
        with torch.inference_mode(False):  # compiled passes tell inputs apart by this, and those of users are ordinary
            held = torch.empty_like(x, device=device)
        held.copy_(x)
        self._aside(run, held)  # whatever is compiled or set up at first use must not come up within the capture
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        try:
            with (
                torch.cuda.graph(graph, pool=self._pool, stream=_stream(device), capture_error_mode="thread_local"),
                _uncached(),
            ):
                outputs = run(held)
        except Exception as error:  # noqa: BLE001 - whatever a network does that cannot be captured
            torch.cuda.synchronize()
            self.clear()
            self.off = True
            warnings.warn(
                f"Predictions cannot be captured as one CUDA graph and run kernel by kernel ({summary(error)}).",
                AbnnWarning,
                stacklevel=6,
            )
            return None
        return _Captured(graph, held, noise, outputs)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """One for all models on a device: for each, libraries keep a workspace of tens of megabytes."""
    return torch.cuda.Stream(device)


def _uncached() -> contextlib.AbstractContextManager[Any]:
    """The caller's autocast without its cache: a graph must not read casts that are gone when it is replayed."""
    if not torch.is_autocast_enabled("cuda"):
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=torch.get_autocast_dtype("cuda"), cache_enabled=False)


def _signature(modules: Iterable[nn.Module]) -> list[Any] | None:
    """Where all parameters and buffers lie; None if hooks are registered, which a graph would not call."""
    found: list[Any] = []
    for module in modules:
        if module._forward_hooks or module._forward_pre_hooks:
            return None
        tensors: list[Tensor | None] = [*module._parameters.values()]
        if not isinstance(module, MeanField):  # whose buffers are the held draws, which predictions do not use
            tensors += module._buffers.values()
        found += [(t.data_ptr(), t.dtype, t.shape, t.stride()) for t in tensors if t is not None]
    return found


def _modes() -> tuple[Any, ...]:
    """Settings of torch and of this package that change which kernels run."""
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    cudnn = torch.backends.cudnn
    flags = (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled())
    return autocast, flags, _tf32(), os.environ.get(VARIABLE)


def _tf32() -> tuple[Any, ...]:
    """What torch does with float32, in its newer words where it knows them: reading the older ones may be an error."""
    backends = torch.backends
    if hasattr(backends, "fp32_precision"):
        return backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32
