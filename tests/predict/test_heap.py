"""Freed memory stays in the process: filling tensors again and again takes no new pages from the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys, torch
from abnn.predict.heap import keep_heap
if sys.argv[1] == "keep":
    keep_heap(), keep_heap()
def work():
    tensors = [torch.ones(2**20) for _ in range(6)]
work(), work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other habits")
def test_pages_are_kept() -> None:
    pages = 10 * 6 * 2**22 // 4096  # that the work writes to; the heap may still grow once
    assert faults("keep") < pages / 10
