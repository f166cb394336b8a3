"""The three ways of convolving with all draws, by shape: milliseconds of each, and which one a prediction takes.

    python benchmarks/ways.py                  on the CPU, into results/ways/cpu.json, and the table into docs/cost.md
    python benchmarks/ways.py --device cuda    on a GPU, into results/ways/cuda.json
    python benchmarks/ways.py --table          the tables again, from the records

Ten draws, as `abnn.bayes.convolutions` measures them: on a GPU, time of the device alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import ROOT, machine

from abnn.bayes import convolutions
from abnn.bayes.convolutions import WAYS, Geometry
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from research.tables import update_between_markers

RESULTS = ROOT / "results" / "ways"
PAGE = ROOT / "docs" / "cost.md"
DRAWS = 10
# What, channels, groups, pixels along one side, kernel, inputs.
SHAPES: dict[str, tuple[int, int, int, int, tuple[int, ...]]] = {
    "paper's network": (64, 1, 6, 3, (1, 8, 32, 128)),
    "its shortcut, 1x1": (64, 1, 6, 1, (8, 128)),
    "ResNet, first stage": (64, 1, 56, 3, (1, 4)),
    "ResNet, second stage": (128, 2, 28, 3, (1, 4)),
    "ResNet-18, last stage": (512, 8, 7, 3, (1, 8)),
    "ResNet-50, last stage": (2048, 32, 7, 3, (1, 8)),
}


def measure(device: torch.device, rounds: int, most: int | None = None) -> list[dict[str, Any]]:
    """A row for each shape and number of inputs; ``most``: the most channels and inputs, for a quick look."""
    rows = []
    random = torch.Generator().manual_seed(0)
    for what, (channels, groups, size, kernel, batches) in SHAPES.items():
        if most is not None and channels > most:
            continue
        geometry = Geometry((1, 1), (kernel // 2,) * 2, groups)
        weight = torch.randn(DRAWS, channels, channels // groups, kernel, kernel, generator=random).to(device)
        for batch in batches if most is None else [batch for batch in batches if batch <= most]:
            x = torch.randn(DRAWS * batch, channels, size, size, generator=random).to(device)
            for folded, rows_of in ((True, x), (False, x[:batch])):
                with torch.inference_mode():
                    calls: dict[str, Any] = {
                        name: partial(way, rows_of, weight, None, geometry, folded) for name, way in WAYS.items()
                    }
                    seconds = convolutions.times_of(calls, device, rounds)
                    taken = convolutions.choose(rows_of, weight, None, geometry, folded)
                times = {name: 1000 * each for name, each in seconds.items()}
                rows.append(
                    {"what": what, "channels": channels, "groups": groups, "pixels": size, "kernel": kernel}
                    | {"inputs": batch, "folded": folded, "ms": times, "taken": taken}
                )
    return rows


def table(record: Mapping[str, Any]) -> str:
    ways = list(WAYS)
    head = ["convolution", "channels", "pixels", "inputs", "draws see", *(f"{way}, ms" for way in ways), "taken"]
    lines = [f"| {' | '.join(head)} |", "|---|---:|---:|---:|---" + "|---:" * len(ways) + "|---|"]
    for row in record["rows"]:
        best = min(row["ms"].values())
        times = [f"**{row['ms'][way]:.3g}**" if row["ms"][way] == best else f"{row['ms'][way]:.3g}" for way in ways]
        seen = "their own input" if row["folded"] else "the same input"
        cells = [row["what"], row["channels"], f"{row['pixels']}²", row["inputs"], seen, *times, row["taken"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    threads = record["threads"]
    where = record["gpu"] or f"{record['processor']}, {threads} thread{'s' * (threads > 1)}"
    return "\n".join([*lines, "", f"{DRAWS} draws, the fastest of {record['rounds']} calls; {where}."])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--table", action="store_true", help="only put the tables into the page again")
    parser.add_argument("--tiny", action="store_true", help="does it run? Small shapes, one call")
    options = parser.parse_args(arguments)
    if not options.table:
        device, rounds = torch.device(options.device), 1 if options.tiny else 15
        found = machine(device)
        record = {"format": "abnn-ways-1", "device": options.device, **provenance(), "rounds": rounds}
        record |= {"rows": measure(device, rounds, 64 if options.tiny else None)}
        record |= {name: found[name] for name in ("processor", "threads", "gpu")}
        options.results.mkdir(parents=True, exist_ok=True)
        write_json(options.results / f"{options.device}.json", record)
    for path in sorted(options.results.glob("*.json")):
        record = read_json(path)
        made = table(record)
        update_between_markers(options.page, f"ways {record['device']}", made)
        print(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
