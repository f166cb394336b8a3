"""What a default prediction costs: times of the plain network, and seconds and memory of a default fit.

    python benchmarks/cost.py                    on the CPU, into results/cost/cpu.json; about five minutes
    python benchmarks/cost.py --device cuda      on a GPU, into results/cost/cuda.json, with the fit
    python benchmarks/cost.py --table            put the tables into docs/cost.md again

Both networks predict the same batch in turns. On a GPU the plain network is one CUDA graph, and so is a prediction after its second call.
The fit is that of a ResNet-50 with 1,000 classes to 2,500 images of noise, on the host.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import ROOT, Plan, interleaved, machine, ratio
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from research.tables import markdown_table, update_between_markers

RESULTS = ROOT / "results" / "cost"
PAGE = ROOT / "docs" / "cost.md"
TITLES = {"paper-resnet": "the paper's network", "resnet50": "ResNet-50, 224 pixels"}
SHAPES = {"paper-resnet": (1, 28, 28), "resnet50": (3, 224, 224)}
CLASSES = {"paper-resnet": 10, "resnet50": 1000}
BATCHES = {
    "cpu": {"resnet50": (8, 1), "paper-resnet": (256, 1)},
    "cuda": {"resnet50": (64, 1), "paper-resnet": (256, 1)},
}
DEVICES = ("cuda", "cpu")
FITTED, FIT_BATCH, SAMPLE = 2500, 64, 200  # images of the fit; images that the score of a timed model learns from


def build(name: str, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    return abnn.build_backbone(name, CLASSES[name], SHAPES[name][0]).to(device).eval()


def images(name: str, count: int) -> TensorDataset:
    random = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES[name], (count,), generator=random)
    return TensorDataset(torch.rand(count, *SHAPES[name], generator=random), labels)


def predictions(name: str, batches: tuple[int, ...], device: torch.device, plan: Plan) -> list[dict[str, Any]]:
    """Return a row for each size of batch: milliseconds of both networks, and their ratio within rounds."""
    network, data = build(name, device), images(name, SAMPLE)
    model = abnn.attach(network, data[0][0][None].to(device))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", abnn.errors.AbnnWarning)  # the network is at chance, which costs as much
        abnn.fit(model, DataLoader(data, 50), epochs=0, progress=False)
    rows = []
    for batch in batches:
        x = images(name, batch).tensors[0].to(device)
        work = {"plain": plain_pass(network, x), "default": partial(score_of, model, x)}
        times = interleaved(work, device, plan)
        row = {"network": name, "batch": batch, "attached_blocks": len(model.block_names)}
        rows.append({**row, **times, "times_plain": ratio(times["default"], times["plain"])})
    return rows


def score_of(model: abnn.Attached, x: Tensor) -> Tensor:
    return model.predict(x).score


def plain_pass(network: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Return a pass of the network alone; on a GPU as one CUDA graph."""

    def run() -> Tensor:
        with torch.inference_mode():
            return network(x)

    if not x.is_cuda:
        return run
    for _ in range(3):  # what is set up at first use must be so before the capture
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = run()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def fit(device: torch.device, count: int) -> dict[str, Any]:
    """Return seconds of a default fit, and the gigabytes that it takes beyond the network."""
    network, data = build("resnet50", device), images("resnet50", count)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before, started = torch.cuda.memory_allocated(), time.perf_counter()
    model = abnn.attach(network, data[0][0][None].to(device))
    abnn.fit(model, DataLoader(data, FIT_BATCH, shuffle=True), progress=False)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    extra = (torch.cuda.max_memory_allocated() - before) / 1e9
    return {"network": "resnet50", "images": count, "seconds": seconds, "extra_gigabytes": extra}


def table(records: dict[str, dict[str, Any]]) -> str:
    """Return a row for each network and batch, large ones first, and a sentence for each device."""
    measured: dict[tuple[str, bool], dict[str, dict[str, Any]]] = {}
    for device, record in records.items():
        for row in record["rows"]:
            measured.setdefault((row["network"], row["batch"] == 1), {})[device] = row
    rows = []
    for (name, _), own in sorted(measured.items(), key=lambda item: (-list(TITLES).index(item[0][0]), item[0][1])):
        sizes = " or ".join(dict.fromkeys(str(own[device]["batch"]) for device in DEVICES if device in own))
        cells = [cell for device in DEVICES for cell in cells_of(own.get(device))]
        rows.append([TITLES[name], sizes, *cells])
    heads = ["network", "batch", "GPU, ms", "times plain", "CPU, ms", "times plain"]
    return "\n".join([markdown_table(heads, rows), *(sentence(records[each]) for each in DEVICES if each in records)])


def cells_of(row: dict[str, Any] | None) -> tuple[str, str]:
    """Return the milliseconds of both networks, and how many times the plain network's the prediction takes."""
    if row is None:
        return "–", "–"
    return f"{row['plain']['median']:.3g} → {row['default']['median']:.3g}", f"{row['times_plain']['ratio']:.2f}"


def sentence(record: dict[str, Any]) -> str:
    """Return where a record was made, and what its fit took."""
    own = record["machine"]
    where = own["gpu"] or f"{own['processor']}, {own['threads']} thread{'s' * (own['threads'] > 1)}"
    text = f"{where}, float32, torch {record['versions']['torch']}, commit {record['code'].get('commit', '?')[:8]}."
    if "fit" not in record:
        return text
    took = f"{record['fit']['seconds']:.0f} s, and {record['fit']['extra_gigabytes']:.1f} GB beyond the network's"
    return f"{text} A default fit of the ResNet-50 to {record['fit']['images']:,} images, 1,000 classes: {took}."


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=list(BATCHES))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--table", action="store_true", help="only put the table into the page again")
    parser.add_argument("--tiny", action="store_true", help="does it run? The paper's network, one round")
    options = parser.parse_args(arguments)
    if not options.table:
        device = torch.device(options.device)
        plan = Plan(rounds=1, warm_up=1, least=0.0) if options.tiny else Plan(rounds=25, warm_up=5)
        record: dict[str, Any] = {"format": "abnn-cost-1", "device": options.device, **provenance()}
        record |= {"machine": machine(device), "rows": []}
        for name, batches in BATCHES[options.device].items():
            if not options.tiny or name == "paper-resnet":
                record["rows"] += predictions(name, batches, device, plan)
        if device.type == "cuda" and not options.tiny:
            record["fit"] = fit(device, FITTED)
        options.results.mkdir(parents=True, exist_ok=True)
        write_json(options.results / f"{options.device}.json", record)
    records = {path.stem: read_json(path) for path in sorted(options.results.glob("*.json"))}
    made = table(records)
    update_between_markers(options.page, "cost", made)
    print(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
