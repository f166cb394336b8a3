"""How fast abnn trains and predicts, beside the same network in other libraries, MC dropout and ensembles.

    python benchmarks/speed.py                                all groups on the CPU, into results/speed/cpu.json
    python benchmarks/speed.py --device cuda                  all groups on the GPU, into results/speed/cuda.json
    python benchmarks/speed.py --only prediction memory       some groups; the others stay in the file as they are
    python benchmarks/speed.py --set batch=32 draws=5         other sizes
    python benchmarks/speed.py --tiny --output tiny.json      every piece once or twice: does it run, do results agree?
    python benchmarks/speed.py --table                        put the tables of results/speed into docs/speed.md again

Groups: training, prediction, seeds, resnet50, memory, curves. Each is written as soon as it is done. Libraries that are not
installed (blitz-bayesian-pytorch, bayesian-torch, torch-uncertainty) are named and left out. The exit status is 1 if a piece of
work failed or results disagree, never for a time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch
from bars import judge
from groups import GROUPS
from peers import find_peers
from setting import ON_CPU, ON_CUDA, TINY, Run, Sizes
from speed_tables import tables, update_page

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from abnn.train.processor import check_bfloat16

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "speed"
PAGE = ROOT / "docs" / "speed.md"
FORMAT = "abnn-speed-1"


def run_group(name: str, device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Everything about one group: where, with what, rows, checks, bars, and what is missing."""
    found, missing = find_peers()
    run = Run(device, sizes, found)
    around = {"machine": machine(device), **provenance(), "sizes": asdict(sizes)}
    around |= {"peers": {peer: each.version for peer, each in found.items()}, "left_out": missing}
    started = time.perf_counter()
    try:
        result = GROUPS[name](run)
    except Exception as error:  # noqa: BLE001 - the other groups can still be measured
        run.fail(name, error)
        result = {"error": run.failed[name]}
    judged = judge(name, device.type, result.get("rows", {}))
    if not _full(sizes, device):
        judged = [{**bar, "met": None} for bar in judged]
    gc.collect()
    seconds = round(time.perf_counter() - started, 1)
    return {**around, "seconds": seconds, "failed": run.failed, **result, "bars": judged}


def write_group(path: Path, device: torch.device, name: str, group: dict[str, Any]) -> dict[str, Any]:
    """Add a group to a record, which may hold others of the same device already."""
    record: dict[str, Any] = (
        read_json(path) if path.exists() else {"format": FORMAT, "device": device.type, "groups": {}}
    )
    if record.get("format") != FORMAT or record["device"] != device.type:
        given = f"{path}, which is not a speed record of {device.type}"
        raise InputError(explain("output", given, "a new file, or a record of the same device", "Choose another file."))
    record["groups"][name] = group
    write_json(path, record)
    return record


def trouble(group: dict[str, Any]) -> list[str]:
    """What went wrong in a group, in words."""
    wrong = [f"{name} failed: {why}" for name, why in group["failed"].items()]
    return wrong + [f"{name}: results differ" for name, each in group.get("checks", {}).items() if not each["agrees"]]


def choose_sizes(device: torch.device, tiny: bool, changes: list[str]) -> Sizes:
    sizes = TINY if tiny else ON_CUDA if device.type == "cuda" else ON_CPU
    known = {each.name for each in fields(Sizes)} - {"plan", "curve_plan"}
    for change in changes:
        name, _, text = change.partition("=")
        if name not in known:
            raise unknown("set", name, known)
        value: Any = text if isinstance(getattr(sizes, name), str) else json.loads(text)
        changed: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value}
        sizes = replace(sizes, **changed)
    return sizes


def machine(device: torch.device) -> dict[str, Any]:
    information = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", information.read_text()) if information.exists() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda,
        "tf32": device.type == "cuda",
        "load_before": round(os.getloadavg()[0], 2),
    }


def _full(sizes: Sizes, device: torch.device) -> bool:
    return sizes == (ON_CUDA if device.type == "cuda" else ON_CPU)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="+", default=list(GROUPS), choices=list(GROUPS), metavar="GROUP")
    parser.add_argument("--tiny", action="store_true", help="sizes that take seconds and say nothing about speed")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="change sizes; bars are not judged")
    parser.add_argument("--threads", type=int, help="of the CPU; default: torch's")
    parser.add_argument("--output", type=Path, help="default: results/speed/DEVICE.json; nothing with --tiny")
    parser.add_argument("--table", action="store_true", help="only render the tables of what was measured")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        for path in [chosen.output] if chosen.output else sorted(RESULTS.glob("*.json")):
            show(path)
        return 0
    device = torch.device(chosen.device)
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    else:
        check_bfloat16()
    sizes = choose_sizes(device, chosen.tiny, chosen.set)
    output = chosen.output or (None if chosen.tiny else RESULTS / f"{device.type}.json")
    wrong: list[str] = []
    for name in chosen.only:
        group = run_group(name, device, sizes)
        wrong += trouble(group)
        if output is not None:
            write_group(output, device, name, group)
        print(f"\n## {name}: {group['seconds']:.0f} s\n")
        for table in tables({"groups": {name: group}}).values():
            print(table + "\n", flush=True)
    if output is not None:
        print(output)
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


def show(path: Path) -> None:
    """Print the tables of a record; the project's own records also go into the documentation."""
    record = read_json(path)
    for name, table in tables(record).items():
        print(f"\n## {record['device']}, {name}\n\n{table}")
    if path.resolve().parent == RESULTS and path.stem == record["device"]:
        update_page(PAGE, record)


if __name__ == "__main__":
    sys.exit(main())
