"""Where the time of a training step goes on a GPU: all of its kernels by kind.

python benchmarks/where.py            profile one step of each kind on this GPU, into results/where/h200.json
python benchmarks/where.py --table    put the table of the record into docs/speed.md again

A step is profiled as it runs in training: replayed as one CUDA graph. ABNN_CONV=grouped and ABNN_CONV=matmul compare ways to
convolve. Most of the time goes into compiling, about a minute; the others take seconds.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from typing import Any

import torch
import work
from setting import ON_CUDA
from timing import ROOT

from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from research.tables import markdown_table, update_between_markers

WARM_UP, TIMED = 8, 20  # steps before a profile: some of them are captured; and timed ones
RECORD, PAGE = ROOT / "results" / "where" / "h200.json", ROOT / "docs" / "speed.md"
KINDS = {
    "changes of layout": ("nchwToNhwc", "nhwcToNchw"),
    "convolutions": ("fprop", "dgrad", "wgrad", "convolve", "cudnn"),
    "matrix products": ("gemm", "cutlass", "nvjet", "splitKreduce", "cublas", "gemv"),
    "normalisation": ("group_norm", "RowwiseMoments", "GammaBeta", "ComputeInternalGradients", "ComputeBackwardFused",
                      "ComputeFusedParams"),
    "sums": ("reduce_kernel", "triton_red", "triton_per", "softmax", "SoftMax"),
    "optimiser": ("multi_tensor_apply",),
    "random numbers": ("distribution_elementwise", "philox"),
    "copies and fills": ("Memcpy", "Memset", "CatArray", "copy_kernel", "FillFunctor"),
    "element by element": ("elementwise", "triton_poi", "triton_for", "index"),
}  # fmt: skip
STEPS = {
    "authors": {"preset": "authors"},
    "authors, bf16, compiled": {"preset": "authors", "precision": "bf16-mixed", "compile": True},
    "default": {"preset": "default"},
}


def kind_of(kernel: str) -> str:
    """What a kernel does, by its name."""
    return next((kind for kind, words in KINDS.items() if any(word in kernel for word in words)), "other")


def by_kind(kernels: list[tuple[str, int, float]]) -> dict[str, dict[str, float]]:
    """(name, calls, microseconds) of kernels, added up by kind."""
    found: dict[str, dict[str, float]] = {}
    for name, calls, spent in kernels:
        each = found.setdefault(kind_of(name), {"kernels": 0, "ms": 0.0})
        each["kernels"] += calls
        each["ms"] += spent / 1000
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"]))


def profile(training: work.OurTraining) -> tuple[list[tuple[str, int, float]], float]:
    """The kernels of one captured step, (name, calls, microseconds), and the milliseconds of a step on the wall."""
    from torch.profiler import DeviceType, ProfilerActivity
    from torch.profiler import profile as profiling

    for _ in range(WARM_UP):
        training()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(TIMED):
        training()
    torch.cuda.synchronize()
    took = (time.perf_counter() - started) / TIMED * 1000
    with profiling(activities=[ProfilerActivity.CUDA]) as found:
        training()
        torch.cuda.synchronize()
    events = [event for event in found.key_averages() if event.device_type == DeviceType.CUDA]
    kernels = [(event.key, event.count, event.self_device_time_total) for event in events]
    return sorted(kernels, key=lambda kernel: -kernel[2]), took


def measure() -> dict[str, Any]:
    """The record: kernels of each step by kind, and milliseconds on the wall."""
    s, device = ON_CUDA, torch.device("cuda")
    torch.backends.cudnn.benchmark = True  # as in abnn.train.loop
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # as in speed.py
    network = work.paper_network(s.width, s.blocks, s.classes, device)
    images, labels = work.made_up(s.pictures, s.pixels, s.classes)
    loader = work.tensor_loader(images, labels, s.batch)
    steps, walls = {}, {}
    for name, options in STEPS.items():
        training = work.OurTraining(copy.deepcopy(network), loader, device, **options)  # type: ignore[arg-type]
        kernels, walls[name] = profile(training)
        steps[name] = by_kind(kernels)
    settings = {"device": torch.cuda.get_device_name(), "batch": s.batch, "conv": os.environ.get("ABNN_CONV", "rule")}
    return {**settings, "steps": steps, "wall_ms": walls, **provenance()}


def table(record: dict[str, Any]) -> str:
    """Milliseconds and kernels of each step by kind."""
    kinds = list(dict.fromkeys(kind for step in record["steps"].values() for kind in step))
    lines = []
    for kind in kinds:
        cells = [step.get(kind, {"ms": 0.0, "kernels": 0}) for step in record["steps"].values()]
        lines.append([kind, *(f"{cell['ms']:.2f} ms, {cell['kernels']:.0f}" for cell in cells)])
    totals = [
        (sum(c["ms"] for c in s.values()), sum(c["kernels"] for c in s.values())) for s in record["steps"].values()
    ]
    lines.append(["all", *(f"{ms:.2f} ms, {kernels:.0f}" for ms, kernels in totals)])
    if "wall_ms" in record:
        lines.append(["on the wall", *(f"{record['wall_ms'][name]:.2f} ms" for name in record["steps"])])
    made = markdown_table(["time, kernels", *record["steps"]], lines)
    note = f" {record['note']}" if record.get("note") else ""
    return f"{made}\n{record['device']}, batch {record['batch']}, one step.{note}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only render the table")
    chosen = parser.parse_args(arguments)
    if not chosen.table:
        write_json(RECORD, measure())
    update_between_markers(PAGE, "speed where", table(json.loads(RECORD.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
