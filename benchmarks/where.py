"""Where the time of a training step goes on a GPU: its kernels by kind, beside what the chip could do at best.

python benchmarks/where.py             profile one step of each kind on this GPU, into results/where/h200.json
python benchmarks/where.py --table     put the table of that file into docs/speed.md again
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import work
from setting import ON_CUDA

from abnn.files import write_json
from abnn.records import provenance
from abnn.tables import markdown_table, update_between_markers

ROOT = Path(__file__).resolve().parents[1]
RECORD, PAGE = ROOT / "results" / "where" / "h200.json", ROOT / "docs" / "speed.md"
KINDS = {
    "convolutions": ("fprop", "dgrad", "wgrad", "convolve", "cutlass", "gemm"),
    "changes of layout": ("nchwToNhwc", "nhwcToNchw"),
    "normalisation": ("group_norm", "RowwiseMoments", "GammaBeta", "ComputeInternalGradients", "ComputeBackwardFused"),
    "sums": ("reduce_kernel",),
    "optimiser": ("multi_tensor_apply",),
    "random numbers": ("distribution_elementwise",),
    "element by element": ("elementwise", "triton_poi"),
}
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
    for name, calls, time in kernels:
        each = found.setdefault(kind_of(name), {"kernels": 0, "ms": 0.0})
        each["kernels"] += calls
        each["ms"] += time / 1000
    return dict(sorted(found.items(), key=lambda item: -item[1]["ms"]))


def profile(training: work.OurTraining) -> list[tuple[str, int, float]]:
    """The kernels of one step that runs kernel by kernel."""
    from torch.profiler import DeviceType, ProfilerActivity
    from torch.profiler import profile as profiling

    training.captured = None
    for _ in range(4):
        training()
    torch.cuda.synchronize()
    with profiling(activities=[ProfilerActivity.CUDA]) as found:
        training()
        torch.cuda.synchronize()
    events = [event for event in found.key_averages() if event.device_type == DeviceType.CUDA]
    return [(event.key, event.count, event.self_device_time_total) for event in events]


def measure() -> dict[str, Any]:
    s, device = ON_CUDA, torch.device("cuda")
    network = work.paper_network(s.width, s.blocks, s.classes, device)
    images, labels = work.made_up(s.pictures, s.pixels, s.classes)
    loader = work.tensor_loader(images, labels, s.batch)
    steps = {}
    for name, options in STEPS.items():
        training = work.OurTraining(copy.deepcopy(network), loader, device, **options)  # type: ignore[arg-type]
        steps[name] = by_kind(profile(training))
    return {"device": torch.cuda.get_device_name(), "batch": s.batch, "steps": steps, **provenance()}


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
    made = markdown_table(["time, kernels", *record["steps"]], lines)
    note = f" {record['note']}" if record.get("note") else ""
    return f"{made}\n{record['device']}, batch {record['batch']}, one step kernel by kernel.{note}"


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
