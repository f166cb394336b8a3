"""Captures of CUDA graphs that leave nothing behind where they fail.

A network can do what no graph can hold: look at a value, or copy from the host. Then passes run kernel by kernel. Where the end of a
capture fails as well, torch leaves things as if it were under way: it stays on the capture's stream, draws no more random numbers, and before
version 2.12 never gives back memory that two streams have used (pytorch/pytorch#180395), until the device is full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from abnn.model.beside import rejoin


@contextlib.contextmanager
def capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Inside, kernels are captured instead of run; an error there is raised again once the capture has ended."""
    before, generator = torch.cuda.current_stream(stream.device), torch.cuda.default_generators[stream.device.index]
    state = generator.clone_state()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            try:
                yield
            except Exception:
                rejoin(stream.device)  # a capture can only end where no other stream goes on with it
                raise
    except Exception:
        torch.cuda.set_stream(before)
        generator.graphsafe_set_state(state)
        torch.cuda.synchronize(stream.device)
        if end := getattr(torch._C, "_cuda_endAllocateToPool", None):
            with contextlib.suppress(RuntimeError):  # it had ended
                end(stream.device.index, pool)
        raise
