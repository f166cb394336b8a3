"""Does an exported model say what the model says? Eight kinds of networks, 10,000 inputs each, by torch and by onnxruntime.

Networks and data are those of the zoo (``research.zoo``), trained for a few epochs; attachments are fitted and thresholds calibrated. Inputs are
ordinary ones, and made from them: changed (noise, shifts of brightness, other orders of words), far (other data, other scales), constant, and
extreme (up to 1e30). Each is predicted in batches of 100 by both.

    python -m research.exports --networks resnet18 vit      # records in results/export
    OMP_NUM_THREADS=2 python -m research.exports --speed    # on a machine without other work: below four minutes for all eight
    python -m research.exports --table                      # into docs/export.md

Speed does not depend on what was learnt, so it is measured on networks that have learnt next to nothing. Both take turns in each of several
rounds over all networks, with as many threads.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.evaluate.provenance import provenance
from abnn.export import Exported
from abnn.files import write_json
from abnn.train.combine import gather, members
from research.tables import markdown_table, update_between_markers
from research.zoo import run as zoo
from research.zoo.data import JOBS
from research.zoo.networks import FITS

RESULTS, DOCS = Path("results/export"), Path("docs/export.md")
NETWORKS = {
    "perceptron": "cancer",
    "convolutions along time": "signals",
    "transformer": "words",
    "convolutions": "digits",
    "paper-resnet": "digits at 32 pixels",
    "resnet18": "digits at 32 pixels",
    "mobilenetv3": "digits at 32 pixels",
    "vit": "digits at 32 pixels",
}
KINDS = ("ordinary", "changed", "far", "constant", "extreme")
BATCH, FEW, TIMED, ROUNDS, CALLS = 100, 7, 64, 7, 5


def build(name: str, data: str, seed: int, epochs: int) -> tuple[abnn.Attached, Any]:
    """Return a calibrated model, and its data."""
    job = JOBS[data](seed)
    torch.manual_seed(seed)
    make = next(make for own, of, make in FITS if (own, of) == (name, data))
    network, zoo.EPOCHS = make(), epochs
    zoo.train(network, *job.train, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = abnn.attach(network.eval(), job.train[0][:1], seed=seed)
        abnn.fit(model, DataLoader(TensorDataset(*job.train), 64), epochs=1, seed=seed, progress=False)
        abnn.calibrate(model, DataLoader(TensorDataset(*job.calibrate), 100), progress=False)
    return model, job


def inputs_of(job: Any, count: int, seed: int) -> dict[str, Tensor]:
    """Return as many inputs of every kind."""
    random = torch.Generator().manual_seed(seed)
    ordinary = torch.cat([job.test[0], job.calibrate[0]])
    ordinary = ordinary[torch.arange(count) % len(ordinary)]
    outliers = torch.cat(list(job.outliers.values()))
    far = outliers[torch.randint(len(outliers), (count,), generator=random)]
    shape = (count, *[1] * (ordinary.ndim - 1))
    if not ordinary.is_floating_point():  # words: other orders, words by chance, one word, the first or the last of all
        words = int(ordinary.max()) + 1
        changed = ordinary[:, torch.randperm(ordinary.shape[1], generator=random)]
        chance = torch.randint(words, ordinary.shape, generator=random)
        constant = torch.randint(words, shape, generator=random).expand_as(ordinary)
        ends = torch.randint(2, ordinary.shape, generator=random) * (words - 1)
        return dict(
            zip(
                KINDS,
                (
                    ordinary,
                    changed,
                    torch.where(torch.rand(shape, generator=random) < 0.5, far, chance),
                    constant,
                    ends,
                ),
            )
        )
    noise = torch.randn(ordinary.shape, generator=random)
    strength = torch.rand(shape, generator=random)
    changed = (1 - 0.5 * strength) * ordinary + 0.3 * strength.flip(0) * noise * ordinary.std()
    scale = 10 ** (3 * torch.rand(shape, generator=random) - 1)
    constant = (10 * torch.rand(shape, generator=random) - 5).expand_as(ordinary)
    extreme = 10 ** (29 * torch.rand(shape, generator=random) + 1) * noise
    return dict(zip(KINDS, (ordinary, changed, torch.where(strength < 0.5, far, scale * noise), constant, extreme)))


def compare(model: abnn.Attached, exported: Exported, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Return how verdicts, labels and scores of both differ, for every kind of input."""
    spread, found = exported.description.spread or 1.0, {}
    for kind, x in inputs.items():
        said = [model.predict(part) for part in x.split(BATCH)]
        score = torch.cat([each.score for each in said]).double().numpy()
        label = torch.cat([each.label for each in said]).numpy()
        verdict = np.array([each for part in said for each in part.verdict])
        own = [exported.predict(part.numpy()) for part in x.split(BATCH)]
        other = np.concatenate([each.score for each in own]).astype(np.float64)
        few = torch.cat([model.predict(part).score for part in x.split(FEW)]).double().numpy()
        number = np.isfinite(score)
        off, own_off = np.abs(other - score)[number], np.abs(few - score)[number]
        unit = np.maximum(spread, np.abs(score[number]))
        found[kind] = {
            "inputs": len(x),
            "verdicts that differ": int(
                (verdict != np.array([each for part in own for each in part.verdict or ()])).sum()
            ),
            "labels that differ": int((label != np.concatenate([each.label for each in own]))[number].sum()),
            "largest difference in spreads": float((off / spread).max(initial=0.0)),
            "median difference in spreads": float(np.median(off / spread)) if number.any() else 0.0,
            "largest difference in spreads, or of the score where that is larger": float((off / unit).max(initial=0.0)),
            "inputs that differ by more than 1e-4 spreads": int((off > 1e-4 * spread).sum()),
            "the same of the model itself in small batches": float((own_off / unit).max(initial=0.0)),
            "largest difference of the network itself to float64": _rounding(model.backbone, x),
            "largest score in spreads": float(np.abs(score[number]).max(initial=0.0) / spread),
            "without a number in torch": int((~number).sum()),
            "verdicts": {name: int((verdict == name).sum()) for name in ("accept", "notice", "reject")},
        }
    return found


def _rounding(network: nn.Module, x: Tensor) -> float:
    """Return the largest relative difference, of all inputs, between what a network says in float32 and in float64."""
    wide = copy.deepcopy(network).double()
    with torch.no_grad():
        own = torch.cat([network(part) for part in x.split(BATCH)]).double()
        exact = torch.cat([wide(part.double() if part.is_floating_point() else part) for part in x.split(BATCH)])
    off = (own - exact).norm(dim=1) / exact.norm(dim=1)
    return float(off[off.isfinite()].max()) if off.isfinite().any() else 0.0


def clock(model: abnn.Attached, exported: Exported, x: Tensor) -> dict[str, float]:
    """Return the median seconds of a batch by both, measured in turns."""
    runs: dict[str, Callable[[], Any]] = {
        "torch": lambda: model.predict(x).verdict,
        "onnx": lambda: exported.predict(x.numpy()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(CALLS + 1):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if number >= 1:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def build_quickly(name: str, data: str) -> tuple[abnn.Attached, Tensor]:
    """Return a model that has learnt next to nothing, and inputs."""
    job = JOBS[data](0)
    torch.manual_seed(0)
    network = next(make for own, of, make in FITS if (own, of) == (name, data))().eval()
    x, y = (each[:200] for each in job.train)
    shorter = mock.patch.object(members, "STEPS", 10), mock.patch.object(gather, "OUTLIERS", 100)
    with warnings.catch_warnings(), shorter[0], shorter[1]:
        warnings.simplefilter("ignore")
        model = abnn.attach(network, x[:1])
        abnn.fit(model, [(x, y)], epochs=0, progress=False)
        abnn.calibrate(model, [(x, y)], progress=False)
    return model, x


def measure_speed(names: list[str]) -> dict[str, Any]:
    """Return the record of all networks' seconds for a batch, the medians of ``ROUNDS`` rounds."""
    started, both = time.perf_counter(), dict[str, tuple[abnn.Attached, Exported, Tensor]]()
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            model, x = build_quickly(name, NETWORKS[name])
            folder = model.export(Path(scratch) / name)
            both[name] = model, Exported(folder, threads=torch.get_num_threads()), x
            print(f"{name}: exported after {time.perf_counter() - started:.0f} s", flush=True)
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {name: {"1": [], str(TIMED): []} for name in names}
    for _ in range(ROUNDS):
        for name, (model, exported, x) in both.items():
            for size, values in rounds[name].items():
                values.append(clock(model, exported, x[: int(size)]))
    found = {name: {size: _middle(values) for size, values in sizes.items()} for name, sizes in rounds.items()}
    return {
        "experiment": "export-speed", "seed": 0, "device": "cpu", "networks": found, "threads": torch.get_num_threads(),
        "config": {"rounds": ROUNDS, "calls": CALLS, "batches": [1, TIMED]}, "load": os.getloadavg()[0],
        "seconds": time.perf_counter() - started, **provenance(),
    }  # fmt: skip


def _middle(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the medians over the rounds, and how many times as fast onnxruntime was: in the middle and in the worst round."""
    faster = sorted(each["torch"] / each["onnx"] for each in rounds)
    middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    return {**middle, "times_as_fast": statistics.median(faster), "worst_round": faster[0]}


def measure(name: str, count: int, seed: int, epochs: int) -> dict[str, Any]:
    """Return the record of one network."""
    model, job = build(name, NETWORKS[name], seed, epochs)
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        folder = model.export(Path(scratch) / "out")
        took = time.perf_counter() - started
        exported = Exported(folder, threads=torch.get_num_threads())
        inputs = inputs_of(job, count // len(KINDS), seed)
        found = compare(model, exported, inputs)
        size = (folder / "model.onnx").stat().st_size
    return {
        "experiment": "export", "network": name, "data": NETWORKS[name], "seed": seed, "device": "cpu",
        "config": {"inputs": count, "epochs": epochs, "batch": BATCH}, "spread": exported.description.spread,
        "kinds": found, "seconds": {"export": took}, "bytes": size, **provenance(),
    }  # fmt: skip


def table(records: list[dict[str, Any]], speed: dict[str, Any]) -> str:
    """One row for each network; ``speed``: the networks of a record of speed, {}: not measured."""
    rows = []
    for each in records:
        kinds = each["kinds"].values()
        usual = [each["kinds"][kind]["largest difference in spreads"] for kind in ("ordinary", "changed")]
        relative = max(kind["largest difference in spreads, or of the score where that is larger"] for kind in kinds)
        times = speed.get(each["network"], {})
        faster = [f"{times[size]['times_as_fast']:.1f}" if times else "–" for size in ("1", str(TIMED))]
        total, other = (sum(kind[name] for kind in kinds) for name in ("inputs", "verdicts that differ"))
        rows.append(
            [each["network"], each["data"], f"{total:,}", str(other), f"{max(usual):.0e}", f"{relative:.0e}", *faster]
        )
    heads = ["network", "data", "inputs", "verdicts that differ", "scores, usual inputs", "scores, all inputs"]
    return markdown_table([*heads, "times as fast, one input", f"{TIMED} inputs"], rows)


def table_of_kinds(records: list[dict[str, Any]]) -> str:
    """One row for each kind of inputs, over all networks."""
    rows, within = [], f"networks of {len(records)} within 1e-4 spreads"
    for name in KINDS:
        kinds = [each["kinds"][name] for each in records]
        off = [each["largest difference in spreads"] for each in kinds]
        relative = [each["largest difference in spreads, or of the score where that is larger"] for each in kinds]
        places = sorted(relative)
        other = sum(each["verdicts that differ"] for each in kinds)
        row = [f"{sum(each['inputs'] for each in kinds):,}", str(other), str(sum(each <= 1e-4 for each in off))]
        rows.append([name, *row, f"{places[len(places) // 2]:.0e}", f"{places[-1]:.0e}"])
    heads = [
        "inputs",
        "how many",
        "verdicts that differ",
        within,
        "difference of scores, median network",
        "worst network",
    ]
    return markdown_table(heads, rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="*", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=3, help="of the network's own training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--speed", action="store_true", help="measure how fast both are, and nothing else")
    what.add_argument("--table", action="store_true", help="put the table of the records into docs/export.md")
    chosen = parser.parse_args(arguments)
    place = chosen.output / "speed.json"
    if chosen.speed:
        write_json(place, record := measure_speed(chosen.networks))
        for name, sizes in record["networks"].items():
            print(name, {size: {key: f"{value:.4g}" for key, value in each.items()} for size, each in sizes.items()})
        return
    if chosen.table:
        records = [json.loads(file.read_text()) for file in sorted(chosen.output.glob("*-seed*.json"))]
        speed = json.loads(place.read_text())["networks"] if place.exists() else {}
        text = table(sorted(records, key=lambda each: list(NETWORKS).index(each["network"])), speed)
        update_between_markers(DOCS, "export", text)
        update_between_markers(DOCS, "export-kinds", table_of_kinds(records))
        return
    for name in chosen.networks:
        record = measure(name, chosen.inputs, chosen.seed, chosen.epochs)
        write_json(chosen.output / f"{name.replace(' ', '-')}-seed{chosen.seed}.json", record)
        print(table([record], {}), flush=True)


if __name__ == "__main__":
    main()
