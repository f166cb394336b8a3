"""Keep freed memory in the process: on Linux, tensors of a few megabytes otherwise go back to the system with every pass.

glibc gives memory back as soon as more than a threshold of it is free, and learns this threshold from the largest block
that was ever freed, up to 32 MiB; see mallopt(3), M_MMAP_THRESHOLD. A pass of all draws allocates and frees many tensors
below that, and getting their pages anew took a quarter of its time. One large block, never touched and freed at once, teaches
the allocator to keep up to 64 MiB.
"""

from __future__ import annotations

import functools

import torch

LARGEST = 2**25 - 2**16  # a little below the size up to which glibc learns


@functools.cache
def keep_heap() -> None:
    """Once in a process; elsewhere than on Linux it does nothing."""
    torch.empty(LARGEST, dtype=torch.uint8)
