"""Checks that products of bfloat16 work on this processor.

Some virtual machines announce a matrix unit (AMX) that they do not have. PyTorch uses it for bfloat16, and the first
product then ends the whole process with an illegal instruction, which cannot be caught. So where such a unit is
announced, a product is tried in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from abnn.errors import InputError, explain

CPU_INFO = Path("/proc/cpuinfo")
WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
"""Environment variable and value with which PyTorch does not use the unit. PyTorch reads it at its first product."""
PRODUCT = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(x, x)"
SECONDS = 120


def check_bfloat16() -> None:
    """Raise an error where bfloat16 would end the process."""
    if not bfloat16_works():
        actual = "'bf16-mixed' on a processor that ends products in bfloat16 with an illegal instruction"
        fix = f"Or start Python with {'='.join(WITHOUT_AMX)} in the environment: then its matrix unit is not used."
        raise InputError(explain("precision", actual, "'32-true' here, 'bf16-mixed' on a GPU", fix))


@cache
def bfloat16_works() -> bool:
    """Return whether a product of bfloat16 on the CPU works. Takes seconds, once, where a matrix unit is announced."""
    try:
        if "amx_bf16" not in CPU_INFO.read_text() or not sys.executable:
            return True
        trial = subprocess.run([sys.executable, "-c", PRODUCT], capture_output=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return True  # the trial says nothing, so it is not forbidden
    return trial.returncode >= 0  # below zero: the number of the signal that ended it
