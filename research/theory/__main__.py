"""Check the theorems, try the objectives, write one JSON file and put the tables from it into docs/theory.md."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from abnn.data.digits import load_digits
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from research.tables import update_between_markers
from research.theory import CHECKS
from research.theory.check import checks_table
from research.theory.trial import EPOCHS, GOALS, PLAIN, PRESET_NAMES, SETTINGS, from_records, run_trial, trial_table

SEEDS = 3


def run(seed: int = 0, seeds: int = SEEDS, epochs: int = EPOCHS) -> dict[str, Any]:
    """All checks, and the trial for ``seeds`` seeds from ``seed`` on, as JSON can hold it."""
    started = time.perf_counter()
    checks = {name: check(seed).to_dict() for name, check in CHECKS.items()}
    seconds = {"checks": time.perf_counter() - started}
    started = time.perf_counter()
    chosen = list(range(seed, seed + seeds))
    trials = [run_trial(each, epochs) for each in chosen]
    seconds["trial"] = time.perf_counter() - started
    settings = {**SETTINGS, "epochs": epochs, "threads": torch.get_num_threads()}
    return {
        "experiment": "theory",
        "seed": seed,
        "seeds": chosen,
        "data": {"name": "digits", "sha256": [load_digits(each).hash() for each in chosen]},
        "settings": {**settings, "objectives": {name: goal.objective.to_dict() for name, goal in GOALS.items()}},
        "checks": checks,
        "trials": trials,
        "seconds": seconds,
        **provenance(),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m research.theory", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of the trial")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the trial")
    parser.add_argument("--output", type=Path, default=Path("results/theory.json"))
    parser.add_argument("--records", type=Path, default=Path("results/compare-digits"), help="of the whole presets")
    parser.add_argument("--into", type=Path, default=Path("docs/theory.md"), help="the document with the tables")
    parser.add_argument("--table", action="store_true", help="only put the tables into the document again")
    options = parser.parse_args(arguments)
    if not options.table:
        write_json(options.output, run(options.seed, options.seeds, options.epochs))
    record = read_json(options.output)
    tables = {
        "theory checks": checks_table(record["checks"], CHECKS),
        "theory trial": trial_table(record["trials"], [PLAIN, *GOALS]),
        "theory presets": trial_table(from_records(options.records, PRESET_NAMES), list(PRESET_NAMES.values())),
    }
    for marker, text in tables.items():
        update_between_markers(options.into, marker, text)
        print(text)


if __name__ == "__main__":
    main()
