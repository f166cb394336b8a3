"""Which queries does a classifier of 150 intents not know?

    python -m research.clinc --data DIR      measure seeds that have no record yet; --table: only put the table into the document

A small transformer is trained on the queries in scope, once for each seed. Rows: the margin and the largest probability of its softmax, every
post-hoc score of :mod:`abnn.baselines.posthoc` that whole numbers allow, fitted to the training queries, and "abnn": attached and
fitted to the same queries, calibrated on the validation queries, all with default settings. Columns, with A(u, v) the AUROC of "a
query of v has a larger score than one of u":

out of scope            A(in scope, out of scope)
typos, dropped words    A(typos, out of scope), A(dropped words, out of scope): a changed query is still one that the network knows
errors                  A(right, wrong), in scope
accuracy                of the row's own predictions in scope; on typos; on dropped words

``--validate`` looks at the validation queries and the 200 queries out of scope that are not in the test, for choosing settings.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

import abnn
from abnn.baselines.posthoc import POSTHOC, PostHocModel, build_posthoc
from abnn.baselines.posthoc.reader import Reader
from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from abnn.metrics import auroc
from abnn.predict import Plain
from research.clinc.data import Clinc, Queries, collate
from research.clinc.network import BATCH, EPOCHS, LAYERS, RATE, WIDTH, train
from research.tables import markdown_table, update_between_markers

SEEDS = 3
PLAIN = ("max-probability", "margin")
NAMES = {
    "out of scope": "out of scope ↑", "typos < out of scope": "typos ↑", "dropped words < out of scope": "dropped words ↑", "errors": "errors ↑",
    "accuracy": "accuracy ↑", "accuracy on typos": "on typos ↑", "accuracy on dropped words": "on dropped ↑",
}  # fmt: skip
Rows = dict[str, dict[str, float]]


def measure(clinc: Clinc, seed: int, device: str, validate: bool = False, epochs: int | None = None) -> dict[str, Any]:
    """Return the record of one seed; ``epochs`` of the fit, None: the default."""
    times = [time.perf_counter()]
    network = train(clinc, seed, device)
    times.append(time.perf_counter())
    learn = clinc.batches(clinc.queries("train", "train", "id"), BATCH)
    tests = clinc.trials() if validate else clinc.tests()
    batches = {each.name: clinc.batches(each, 200) for each in tests}
    plain = PostHocModel(Plain(network, on(device, learn[0][0])), usable(network, on(device, learn[0][0]))).fit(learn)
    times.append(time.perf_counter())
    rows = columns(plain, batches, tests, [*PLAIN, *plain.scores])
    model = abnn.attach(network, on(device, learn[0][0]), seed=seed)
    started = time.perf_counter()
    history = abnn.fit(model, shuffled(learn, seed), epochs=epochs, seed=seed, progress=False)
    times += [started, time.perf_counter()]
    abnn.calibrate(model, clinc.batches(clinc.queries("val", "val", "id"), 200), progress=False)
    times.append(time.perf_counter())
    rows |= {"abnn": columns(model, batches, tests, ["combined"])["combined"]}
    accepted = {
        name: float(np.mean([verdict == "accept" for verdict in model.predict(parts, progress=False).verdict]))
        for name, parts in batches.items()
    }
    spans = {"training": times[1] - times[0], "post-hoc": times[2] - times[1], "fit": times[4] - times[3]}
    return {
        "experiment": "clinc", "seed": seed, "data": clinc.digest, "device": device, **provenance(),
        "config": {"layers": LAYERS, "width": WIDTH, "epochs": EPOCHS, "batch": BATCH, "rate": RATE, "fit": "default" if epochs is None else epochs},
        "weights": sum(each.numel() for each in network.parameters()), "attachments": model.attachment_size, "at": model.block_names,
        "rows": rows, "accepted": accepted, "losses": history.rows[-1] if history.rows else {}, "validate": validate,
        "seconds": {**spans, "calibration": times[5] - times[4]},
    }  # fmt: skip


def on(device: str, x: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to(device) for name, value in x.items()}


def shuffled(batches: Sequence[Any], seed: int) -> Any:
    """The same queries as a loader, in batches of random ones."""
    rows = [
        (words[: int(count)], int(label))
        for x, y in batches
        for words, count, label in zip(x["input_ids"], x["attention_mask"].sum(1), y)
    ]
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(rows, BATCH, shuffle=True, collate_fn=collate, generator=generator)  # type: ignore[arg-type]


def usable(network: nn.Module, example: Any) -> list[str]:
    """Post-hoc scores that this network allows: those that change the input need gradients, which whole numbers have not."""
    missing = Reader(Plain(network, example)).missing
    scores = {name: build_posthoc(name) for name in POSTHOC}
    return [name for name, each in scores.items() if "network" not in each.needs and not set(each.needs) & set(missing)]


def columns(model: Any, batches: dict[str, list[Any]], tests: Sequence[Queries], scores: Sequence[str]) -> Rows:
    """The columns of the module's docstring for each of ``scores``, from one pass over the tests."""
    values: dict[str, dict[str, np.ndarray]] = {name: {} for name in scores}
    right: dict[str, np.ndarray] = {}
    for each in tests:
        said = [model.predict(x) for x, _ in batches[each.name]]
        label = np.concatenate([prediction.label.cpu().numpy() for prediction in said])
        right[each.name] = label == np.array(each.labels)
        for name in scores:
            values[name][each.name] = np.concatenate([p.score_by(name).float().cpu().numpy() for p in said])
    known = [each.name for each in tests if each.tier == "semi"]
    accuracy = {f"accuracy on {name}": float(right[name].mean()) for name in known}
    rows = {}
    for name, by_set in values.items():
        far, good = by_set["out of scope"], by_set["in scope"]
        rows[name] = {
            "out of scope": auroc(good, far),
            **{f"{other} < out of scope": auroc(by_set[other], far) for other in known},
            "errors": auroc(good[right["in scope"]], good[~right["in scope"]]),
            "accuracy": float(right["in scope"].mean()),
            **accuracy,
        }
    return rows


def table(records: Sequence[dict[str, Any]]) -> str:
    """Means and standard deviations over seeds, sorted by the first column; one sentence if there are none."""
    if not records:
        return "No numbers are recorded yet.\n"
    names = sorted(
        records[0]["rows"], key=lambda row: -np.mean([each["rows"][row]["out of scope"] for each in records])
    )
    lines = []
    for row in names:
        entries = [[100 * each["rows"][row][key] for each in records] for key in NAMES]
        lines.append([row, *(f"{np.mean(each):.1f} ± {np.std(each, ddof=len(each) > 1):.1f}" for each in entries)])
    best = max(np.mean([each["rows"][row]["out of scope"] for each in records]) for row in names if row != "abnn")
    ours = np.mean([each["rows"]["abnn"]["out of scope"] for each in records])
    accepted = np.mean([[each["accepted"][name] for name in ("in scope", "out of scope")] for each in records], axis=0)
    sentence = (
        f"{len(records)} seeds. Out of scope: abnn {100 * (ours - best):+.1f} points over the best other row. Accepted: {100 * accepted[0]:.1f} % "
        f"of queries in scope, {100 * accepted[1]:.1f} % of those out of scope."
    )
    return f"{markdown_table(['score', *NAMES.values()], lines)}\n{sentence}\n"


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.clinc", description=__doc__, formatter_class=form)
    parser.add_argument("--data", type=Path, metavar="DIR", help="see research/clinc/data.py")
    parser.add_argument(
        "--table", action="store_true", help="only put the table of what was recorded into the document"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--validate", action="store_true", help="look at validation data, and record nothing")
    parser.add_argument(
        "--limit", type=int, metavar="N", help="only the first N queries of each intent, for rehearsals"
    )
    parser.add_argument("--output", type=Path, default=Path("results/clinc"))
    parser.add_argument("--into", type=Path, default=Path("docs/text.md"))
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shown: list[dict[str, Any]] = []
    for seed in [] if options.table else range(options.seeds):
        path = options.output / f"seed{seed}.json"
        if options.validate or not path.exists():
            record = measure(Clinc(options.data, options.limit), seed, device, options.validate)
            shown.append(record)
            if not options.validate:
                write_json(path, record)
            print(f"seed {seed}: {record['rows']['abnn']}", flush=True)
    paths = sorted(options.output.glob("*.json")) if options.output.is_dir() else []
    text = table(shown if options.validate else [json.loads(path.read_text()) for path in paths])
    if options.table:
        update_between_markers(options.into, "clinc", text)
    else:
        print(text)
