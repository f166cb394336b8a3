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
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import bars
import torch
from groups import GROUPS
from peers import find_peers
from setting import ON_CPU, ON_CUDA, TINY, Run, Sizes
from timing import ROOT, machine, ratio

from abnn.errors import InputError, explain, unknown
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from abnn.predict.processor import check_bfloat16
from research.tables import update_between_markers

RESULTS = ROOT / "results" / "speed"
PAGE = ROOT / "docs" / "speed.md"
FORMAT = "abnn-speed-1"
REFERENCES = (bars.OURS, bars.ONE_SEED, bars.PLAIN_GRAPH, bars.PLAIN)


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
    judged = bars.judge(name, device.type, result.get("rows", {}))
    if sizes != (ON_CUDA if device.type == "cuda" else ON_CPU):
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


def choose_sizes(sizes: Sizes, changes: list[str]) -> Sizes:
    """Return other sizes: "batch=32", values as JSON or else text; an unknown name is an error."""
    for change in changes:
        name, _, text = change.partition("=")
        known = {each.name for each in fields(Sizes)} - {"plan", "curve_plan"}
        if name not in known:
            raise unknown("set", name, known)
        value: Any = text if isinstance(getattr(sizes, name), str) else json.loads(text)
        changed: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value}
        sizes = replace(sizes, **changed)
    return sizes


def tables(record: Mapping[str, Any]) -> dict[str, str]:
    """A table for each group that was measured, and one for the bars of all."""
    made = {name: _group(name, group) for name, group in record["groups"].items() if "error" not in group}
    judged = {name: group["bars"] for name, group in record["groups"].items() if group.get("bars")}
    return {**made, **({"bars": _bars(judged)} if judged else {})}


def update_page(page: Path, record: Mapping[str, Any]) -> None:
    """Put every table between its markers ``speed DEVICE GROUP``."""
    for name, table in tables(record).items():
        update_between_markers(page, f"speed {record['device']} {name}", table)


def _group(name: str, group: Mapping[str, Any]) -> str:
    parts = _curves(group) if "curves" in group else [_rows(group["rows"])]
    left_out = {**group["left_out"], **group["failed"]}
    if left_out:
        parts.append("Left out: " + "; ".join(f"{each} ({why})" for each, why in left_out.items()))
    checks = group.get("checks", {})
    if checks:
        largest = max(checks.values(), key=lambda each: each["value"] / each["most"])
        wrong = [each for each, result in checks.items() if not result["agrees"]]
        verdict = f"**These results do not agree: {', '.join(wrong)}.**" if wrong else "All results agree"
        parts.append(f"{verdict} (largest difference {largest['value']:.1g} in total variation).")
    return "\n\n".join([*parts, _measured(name, group)])


def _rows(rows: Mapping[str, Any]) -> str:
    reference = next((name for name in REFERENCES if name in rows), next(iter(rows), ""))
    lines = [f"| | median | quartiles | times {reference} |", "|---|---:|---:|---:|"]
    for name, each in sorted(rows.items(), key=lambda item: item[1]["median"]):
        low, high = map(number, each["quartiles"])
        times = number(ratio(each, rows[reference])["ratio"])
        lines.append(f"| {name} | {quantity(each['median'], each['unit'])} | {low} to {high} | {times} |")
    return "\n".join(lines)


def _curves(group: Mapping[str, Any]) -> list[str]:
    parts = []
    for curve, points in group["curves"].items():
        names = list(dict.fromkeys(name for point in points for name in point["rows"]))
        lines = [f"| {curve} | {' | '.join(names)} |", "|---:" * (len(names) + 1) + "|"]
        for point in points:
            rows = point["rows"]
            cells = [quantity(rows[name]["median"], rows[name]["unit"]) if name in rows else "" for name in names]
            lines.append(f"| {point['at']} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return parts


def _bars(judged: Mapping[str, list[Mapping[str, Any]]]) -> str:
    lines = [
        "| group | time (memory) of | over that of | ratio | quartiles | wanted | |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for group, each in judged.items():
        for bar in each:
            wanted = f"at least {bar['least']:g}" if bar["least"] is not None else f"at most {bar['most']:g}"
            low, high = map(number, bar["quartiles"])
            met = {True: "met", False: "**not met**", None: "not these sizes"}[bar["met"]]
            lines.append(
                f"| {group} | {bar['above']} | {bar['below']} | {number(bar['ratio'])} | {low} to {high} | {wanted} | {met} |"
            )
    return "\n".join(lines)


def _measured(name: str, group: Mapping[str, Any]) -> str:
    machine, versions, sizes = group["machine"], group["versions"], group["sizes"]
    where = machine["gpu"] or f"{machine['threads']} of {machine['cores']} cores ({machine['processor']})"
    size = f"{sizes['pixels']}x{sizes['pixels']}, batch {sizes['batch']}"
    if name == "prediction":
        size = f"{size}, {sizes['draws']} draws"
    elif name == "seeds":
        size = f"{size}, {sizes['seeds']} seeds"
    elif name == "resnet50":
        kind = "bf16" if sizes["resnet_bf16"] else "float32"
        size = f"{sizes['resnet']}, {sizes['resnet_pixels']}x{sizes['resnet_pixels']}, batch {sizes['resnet_batch']}, {kind}"
        size = f"{size}, {sizes['draws']} draws"
    elif name == "curves":
        size = f"where not varied: batch {sizes['curve_batch']}, {sizes['draws']} draws, width {sizes['width']}"
        size = f"{size}, {sizes['blocks']} blocks"
    found = "".join(f", {peer} {version}" for peer, version in group["peers"].items())
    return f"{where}; {size}; torch {versions['torch']}{found}."


def quantity(value: float, unit: str) -> str:
    return f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--only", nargs="+", default=list(GROUPS), choices=list(GROUPS), metavar="GROUP")
    parser.add_argument("--tiny", action="store_true", help="sizes that take seconds and say nothing about speed")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="change sizes; bars are not judged")
    parser.add_argument("--output", type=Path, help="default: results/speed/DEVICE.json; nothing with --tiny")
    parser.add_argument("--table", action="store_true", help="only render the tables of what was measured")
    chosen = parser.parse_args(arguments)
    if chosen.table:
        for path in [chosen.output] if chosen.output else sorted(RESULTS.glob("*.json")):
            show(path)
        return 0
    device = torch.device(chosen.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    else:
        check_bfloat16()
    sizes = choose_sizes(TINY if chosen.tiny else ON_CUDA if device.type == "cuda" else ON_CPU, chosen.set)
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
