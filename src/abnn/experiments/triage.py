"""Do verdicts keep their promise? The embedded digits: python -m abnn.experiments.triage

Trains the example once, then measures without any further choice: the share of good inputs not accepted over many random
calibration splits; verdicts on all three tiers, with common thresholds, thresholds per class and thresholds by cost; false
alarms of the drift monitor on streams without drift, and how soon it notices photographs among digits.
"""

from __future__ import annotations

import argparse
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from abnn._version import __version__
from abnn.data.digits import load_digits
from abnn.drift import DriftMonitor
from abnn.experiments.demo import DRAWS, Demo, run_demo
from abnn.files import write_json
from abnn.triage import Costs, Triage, check_guarantee, report
from abnn.triage.calibrate import choose, gather

SHARES = (0.01, 0.05, 0.1, 0.2)
SPLITS = 200
STREAMS, ALARM, PHOTOGRAPHS = 300, 0.05, 0.2
STREAM_LENGTH = 400


def measure(demo: Demo, seed: int, splits: int = SPLITS, streams: int = STREAMS) -> dict[str, Any]:
    """All numbers of the experiment, as JSON can hold them."""
    data = load_digits(seed)
    batches = [(data.val.x, data.val.y)]
    gathered = gather(demo.model, batches, draws=DRAWS)
    held = demo.attached.scores("id")
    good = np.concatenate([gathered.good, held])
    size = len(gathered.good)
    choices = {
        "default": demo.triage,
        "with confidence 0.95": choose(gathered, confidence=0.95),
        "per class, 20 % noticed": choose(gathered, noticed=0.2, rejected=0.05, per_class=True),
        "by cost": choose(gathered, costs=Costs()),
    }
    return {
        "experiment": "triage",
        "abnn": __version__,
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
        "seed": seed,
        "data": {"name": "digits", "sha256": data.hash(), "calibration": size, "good": len(good)},
        "guarantee": [asdict(check_guarantee(good, share, splits, seed, size)) for share in SHARES],
        "verdicts": {name: _verdicts(each, demo) for name, each in choices.items()},
        "drift": measure_drift(good, demo.attached.scores("full"), size, streams, seed),
    }


def measure_drift(good: np.ndarray, far: np.ndarray, size: int, streams: int, seed: int) -> dict[str, Any]:
    """False alarms on random orders of good scores, and inputs until the alarm with photographs mixed in.

    A stream without drift is what a random order of the good scores leaves after calibration; in a stream with drift, each
    score is one of a photograph with probability ``PHOTOGRAPHS``.
    """
    rng = np.random.default_rng(seed)
    false, delays = 0, []
    for stream in range(streams):
        order = rng.permutation(good)
        monitor = DriftMonitor.from_scores(order[:size], ALARM, stream)
        is_far = rng.random(STREAM_LENGTH) < PHOTOGRAPHS
        drifted = np.where(is_far, rng.choice(far, STREAM_LENGTH), rng.choice(order[size:], STREAM_LENGTH))
        false += monitor.update(order[size:])
        monitor.reset()
        monitor.update(drifted)
        delays.append(monitor.alarmed_at if monitor.alarmed_at is not None else np.inf)
    return {
        "alarm": ALARM,
        "streams": streams,
        "false_alarms": {"share": false / streams, "inputs": len(good) - size},
        "photographs": {
            "share": PHOTOGRAPHS,
            "noticed": float(np.isfinite(delays).mean()),
            "inputs_until_alarm": {f"{q} %": _finite(np.quantile(delays, q / 100, method="lower")) for q in (50, 90)},
        },
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _verdicts(triage: Triage, demo: Demo) -> dict[str, Any]:
    found = report(triage, demo.attached).to_dict()
    kept = ("notice", "reject", "noticed", "rejected", "confidence", "by_class", "inputs")
    return {"triage": {name: getattr(triage, name) for name in kept}, "sets": found["sets"]}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m abnn.experiments.triage", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("results/triage"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    demo = run_demo(options.seed, progress=not options.quiet)
    found = measure(demo, options.seed)
    path = options.output / f"digits-seed{options.seed}.json"
    write_json(path, found)
    for each in found["guarantee"]:
        print(f"at most {each['bound']:.0%} promised: {each['mean']:.2%} ± {each['standard_error']:.2%}")
    print(report(demo.triage, demo.attached).to_markdown(), end="")
    print(f"drift: {found['drift']}\nwritten to {path}")


if __name__ == "__main__":
    main()
