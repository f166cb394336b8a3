"""Times of several pieces of work, side by side in one run.

Rounds are interleaved: in every round each piece is timed once, and each round starts with another one. A machine whose
speed drifts then slows all of them alike, and ratios are taken within rounds before their median is.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT))  # the scripts of this folder import research, which lies beside it
Work = Callable[[], object]
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class Plan:
    """How long to look: rounds, calls before them, and seconds after which no further round starts."""

    rounds: int = 10
    warm_up: int = 5
    least: float = 0.02  # seconds of calls in one round, so that the clock and a device's answer do not count
    budget: float = 60.0


def interleaved(work: Mapping[str, Work], device: torch.device, plan: Plan) -> dict[str, dict[str, Any]]:
    """A row for each piece of work: milliseconds a call in every round, their median and quartiles."""
    calls = {name: _warm_up(each, device, plan) for name, each in work.items()}
    seconds: dict[str, list[float]] = {name: [] for name in work}
    started, names = time.perf_counter(), list(work)
    for number in range(plan.rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() - started > plan.budget:
            break
        first = number % max(1, len(names))
        for name in names[first:] + names[:first]:
            seconds[name].append(timed(work[name], calls[name], device))
    return {name: {**row([1000 * each for each in seconds[name]], "ms"), "calls": calls[name]} for name in work}


def timed(work: Work, calls: int, device: torch.device) -> float:
    """Seconds a call, on the wall: what the host does counts as much as what the device does."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        _wait(device)
        started = time.perf_counter()
        for _ in range(calls):
            work()
        _wait(device)
        return (time.perf_counter() - started) / calls
    finally:
        if collecting:
            gc.enable()


def row(values: Sequence[float], unit: str) -> dict[str, Any]:
    """Values in the order of the rounds, with median and quartiles."""
    low, middle, high = quartiles(values)
    return {"unit": unit, "median": middle, "quartiles": [low, high], "values": [float(value) for value in values]}


def ratio(above: Mapping[str, Any], below: Mapping[str, Any]) -> dict[str, Any]:
    """Median and quartiles of the ratios within rounds."""
    low, middle, high = quartiles([a / b for a, b in zip(above["values"], below["values"])])
    return {"ratio": middle, "quartiles": [low, high]}


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def machine(device: torch.device = CPU) -> dict[str, Any]:
    """Where a measurement was made, and how busy the machine was before it."""
    information = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.+)", information.read_text()) if information.exists() else []
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "cuda": torch.version.cuda,
        "tf32": device.type == "cuda",
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def _warm_up(work: Work, device: torch.device, plan: Plan) -> int:
    """Call it until it runs as it will run; how many calls make a round."""
    for _ in range(plan.warm_up - 1):
        work()
    return max(1, math.ceil(plan.least / max(timed(work, 1, device), 1e-6)))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
