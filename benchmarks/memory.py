"""Peak memory of a prediction with the paper's network, in a process that does nothing else.

    python benchmarks/memory.py '{"device": "cpu", "draws": 100, "batch": 128}'

prints one JSON object in MiB: ``peak``, and ``before``, what the process held before the network was built.
On the CPU they are resident memory, on CUDA ``torch.cuda.max_memory_allocated``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from work import default_model, paper_network

import abnn


@dataclass(frozen=True)
class Point:
    """One place on the cost curves."""

    device: str = "cpu"
    draws: int = 10
    batch: int = 128
    pixels: int = 28
    width: int = 64
    blocks: int = 6
    classes: int = 10
    preset: str = "authors"
    last: int | None = None
    threads: int | None = None

    def build(self) -> tuple[abnn.Attached, torch.Tensor]:
        """The attached network and a batch for it."""
        device = torch.device(self.device)
        network = paper_network(self.width, self.blocks, self.classes, device)
        x = torch.rand(self.batch, 1, self.pixels, self.pixels, generator=torch.Generator().manual_seed(0)).to(device)
        if self.preset == "default":
            return default_model(network, x, self.last), x
        return abnn.attach(network, x[:1], preset=self.preset, last=self.last, draws=1), x


def measure(point: Point) -> dict[str, float]:
    """Peak and earlier memory of this process, in MiB; on the CPU the peak is that of its whole life."""
    on_cuda = point.device.startswith("cuda")
    if on_cuda:
        torch.cuda.init()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() / 2**20 if on_cuda else _resident("VmRSS")
    model, x = point.build()
    for _ in range(5 if on_cuda else 2):  # later calls may keep graphs of earlier ones
        model.predict(x, draws=point.draws)
    peak = torch.cuda.max_memory_allocated() / 2**20 if on_cuda else _resident("VmHWM")
    return {"peak": round(peak, 2), "before": round(before, 2)}


def measure_alone(point: Point) -> dict[str, float]:
    """The same in a fresh process."""
    command = [sys.executable, str(Path(__file__).resolve()), json.dumps(asdict(point))]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def _resident(what: str) -> float:
    """VmRSS: now; VmHWM: the peak since the program started. ru_maxrss would count the parent's memory as well."""
    with contextlib.suppress(OSError):
        found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
        if found:
            return int(found[1]) / 1024
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return usage / (2**20 if sys.platform == "darwin" else 2**10)


def main() -> None:
    point = Point(**json.loads(sys.argv[1]))
    if point.threads:
        torch.set_num_threads(point.threads)
    if point.device.startswith("cuda"):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    print(json.dumps(measure(point)))


if __name__ == "__main__":
    main()
