"""A second CUDA stream for what a pass reads on the way: the statistics of one block run beside the next block.

Their kernels are small and leave most of the device idle. In a CUDA graph they become a branch of their own. A network that changes in place what its
blocks have said, as :func:`changes_outputs` finds out, has one stream for all; so has everything that is not on CUDA, wants gradients or is
compiled.
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
def beside(device: torch.device, on: bool, *read: Tensor | None) -> Iterator[None]:
    """Inside, kernels run on the second stream, after those that have made ``read``; without any they read what was made there alone.

    on  whether this pass has a second stream
    """
    if not on:
        yield
        return
    side = _stream(device, threading.get_ident())
    if read:
        side.wait_stream(torch.cuda.current_stream(device))
    for each in read:
        if each is not None:
            each.record_stream(side)  # its memory is not given to others before it has been read
    with torch.cuda.stream(side):
        yield


def join(made: Sequence[Tensor], on: bool) -> None:
    """Let what follows wait for everything on the second stream, where these tensors were made."""
    if on and made:
        current = torch.cuda.current_stream(made[0].device)
        current.wait_stream(_stream(made[0].device, threading.get_ident()))
        for each in made:
            each.record_stream(current)


def rejoin(device: torch.device) -> None:
    """Let what follows wait for the second stream if it takes part in a capture: one that failed half-way has left it behind."""
    side = _stream(device, threading.get_ident())
    with torch.cuda.stream(side):
        captured = torch.cuda.is_current_stream_capturing()
    if captured:
        with contextlib.suppress(RuntimeError):  # of a capture that is not valid any more
            torch.cuda.current_stream(device).wait_stream(side)


def changes_outputs(run: Pass, x: Batch) -> bool:
    """Whether the network changes, later in a pass, what its noted blocks have said, or what came in."""
    read: list[tuple[Tensor, int]] = []
    run.state.read = read
    with torch.inference_mode(False), torch.no_grad():  # elsewhere tensors do not count how often they are written to
        run(x.clone())
    run.take_features()
    run.state.read = None
    return any(tensor._version != version for tensor, version in read)


def is_possible(device: torch.device) -> bool:
    """Whether a pass that begins now can have a second stream."""
    return device.type == "cuda" and not (torch.is_grad_enabled() or torch.compiler.is_compiling())


@functools.cache
def _stream(device: torch.device, thread: int) -> torch.cuda.Stream:
    """Each thread has its own: while one captures a graph, its streams take nothing else."""
    return torch.cuda.Stream(device)
