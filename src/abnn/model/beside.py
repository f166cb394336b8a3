"""A second CUDA stream for the statistics that a pass reads on the way: those of one block run beside the next block.

Their kernels are small and leave most of the device idle. In a CUDA graph they become a branch of their own.

The second stream is not used where the network changes outputs of its blocks in place (:func:`changes_outputs` finds
that out), nor for passes that are not on CUDA, need gradients or are compiled.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from abnn.model.inputs import Batch

if TYPE_CHECKING:
    from abnn.model.passes import Pass


@contextlib.contextmanager
def beside(device: torch.device, on: bool, *inputs: Tensor | None) -> Iterator[None]:
    """Inside, kernels run on the second stream.

    on      whether this pass has a second stream; else nothing changes
    inputs  tensors that the kernels read: they wait for the first stream, which made these. Without any, they do not
            wait and may read only what the second stream made
    """
    if not on:
        yield
        return
    side = _stream(device, threading.get_ident())
    if inputs:
        side.wait_stream(torch.cuda.current_stream(device))
    for each in inputs:
        if each is not None:
            each.record_stream(side)  # so that its memory is not reused before it has been read
    with torch.cuda.stream(side):
        yield


def join(outputs: Sequence[Tensor], on: bool) -> None:
    """Let the current stream wait for everything on the second stream, which made these tensors."""
    if on and outputs:
        current = torch.cuda.current_stream(outputs[0].device)
        current.wait_stream(_stream(outputs[0].device, threading.get_ident()))
        for each in outputs:
            each.record_stream(current)


def rejoin(device: torch.device) -> None:
    """Let the current stream wait for the second one, if that still takes part in a capture that failed half-way."""
    side = _stream(device, threading.get_ident())
    with torch.cuda.stream(side):
        captured = torch.cuda.is_current_stream_capturing()
    if captured:
        with contextlib.suppress(RuntimeError):  # the capture is no longer valid
            torch.cuda.current_stream(device).wait_stream(side)


def changes_outputs(run: Pass, x: Batch) -> bool:
    """Return whether the network later changes, in place, its input or outputs of blocks that are places.

    True as well where that cannot be known: tensors of inference mode do not count writes.
    """
    reads: list[tuple[Tensor, int | None]] = []
    run.state.reads = reads
    with torch.inference_mode(False), torch.no_grad():
        run(x.clone())
    run.take_features()
    run.state.reads = None
    return any(version is None or tensor._version != version for tensor, version in reads)


def is_possible(device: torch.device) -> bool:
    """Return whether a pass that begins now can have a second stream."""
    return device.type == "cuda" and not (torch.is_grad_enabled() or torch.compiler.is_compiling())


@functools.cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    """Return the second stream of a thread.

    Threads share none: while one captures a graph, its streams can do nothing else.
    """
    return torch.cuda.Stream(device)
