"""Captures of CUDA graphs that clean up when they fail.

A network can do what no graph can hold: look at a value, or copy from the host. Then passes run kernel by kernel. If
the end of the capture fails as well, torch stays in the state of a capture: it stays on the capture's stream and draws
no more random numbers. Before version 2.12 it also never frees memory that two streams have used
(pytorch/pytorch#180395), until the device is full.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from abnn.model.beside import rejoin


@contextlib.contextmanager
def capture(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any) -> Iterator[None]:
    """Inside, kernels are captured instead of run. An error is raised again after the capture has ended."""
    before, generator = torch.cuda.current_stream(stream.device), torch.cuda.default_generators[stream.device.index]
    state = generator.clone_state()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            try:
                yield
            except Exception:
                rejoin(stream.device)  # a capture cannot end while another stream takes part in it
                raise
    except Exception:
        torch.cuda.set_stream(before)
        generator.graphsafe_set_state(state)
        torch.cuda.synchronize(stream.device)
        if end := getattr(torch._C, "_cuda_endAllocateToPool", None):
            with contextlib.suppress(RuntimeError):  # it has ended already
                end(stream.device.index, pool)
        raise
