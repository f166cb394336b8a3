"""Keeps freed memory in the process.

On Linux, tensors of a few megabytes otherwise go back to the system with every pass.

glibc gives memory back as soon as more than a threshold of it is free, and learns this threshold from the largest block
that was ever freed, up to 32 MiB; see mallopt(3), M_MMAP_THRESHOLD. A pass of all draws allocates and frees many
tensors below that size, and getting their pages again took a quarter of its time. One large block that is freed at
once, never touched, makes the allocator keep up to 64 MiB.
"""

from __future__ import annotations

import functools

import torch

LARGEST = 2**25 - 2**16  # a little below 32 MiB, the size up to which glibc learns


@functools.cache
def keep_heap() -> None:
    """Make the allocator keep memory, once in a process. It does nothing on systems other than Linux."""
    torch.empty(LARGEST, dtype=torch.uint8)
