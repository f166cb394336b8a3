"""Sixty networks that others wrote: attach, fit, predict, calibrate, save, load on a fresh copy, detach.

    python -m research.models            measure what has no record yet; --table: only put the table into the document

Checked to the bit: predictions after loading, and what the network says after detaching. A record for each network says what came out, and
how far attaching alone moved its output, which rounding may do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import abnn
from abnn.config import FitConfig
from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from abnn.model.calls import logits_of
from abnn.model.inputs import Batch, call, read
from research.models.networks import CASES, Case
from research.tables import markdown_table, update_between_markers

CHECKS = ("drop-in", "loaded", "detached")


def walk(case: Case, seed: int = 0) -> dict[str, Any]:
    """Return the record of one network."""
    started = time.perf_counter()
    network, copy = (_build(case, seed) for _ in range(2))
    train, held_out, new = (case.batches(number) for number in range(3))
    x, inputs = _inputs(new[0])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = call(network, x)
        model = abnn.attach(network, example=inputs, task=case.task, seed=seed)
        after = call(model, x)
    moved = float((_logits(after) - _logits(before)).abs().max())
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        abnn.fit(model, train, epochs=1, seed=seed, progress=False, config=FitConfig(accelerator="cpu"))
        abnn.calibrate(model, held_out, progress=False)
    prediction = model.predict(inputs)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        again = abnn.load(Path(folder) / "model", copy).predict(inputs)
    own, size = model.block_names, model.attachment_size
    share = size / sum(each.numel() for each in network.parameters())
    with torch.no_grad():
        apart = _logits(call(abnn.detach(model), x))
    return {
        "experiment": "models", "network": case.name, "source": case.source, "task": case.task, "seed": seed, "device": "cpu", **provenance(),
        "inputs": list(x.values) if not isinstance(x, Tensor) else ["one tensor"], "at": own, "share": share, "twice": model.folds_at_input,
        "moved": moved, "output": type(before).__name__,
        "drop-in": type(after) is type(before) and moved <= 1e-4 * (1 + float(_logits(before).abs().max())),
        "loaded": torch.equal(again.samples, prediction.samples) and torch.equal(again.score, prediction.score) and again.verdict == prediction.verdict,
        "detached": torch.equal(apart, _logits(before)), "seconds": time.perf_counter() - started,
    }  # fmt: skip


def _build(case: Case, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return case.build().eval()


def _inputs(batch: Any) -> tuple[Batch, Any]:
    """Inputs of a batch as networks are called with them, and as users hand them on."""
    if isinstance(batch, Mapping):
        return read(batch)[0], batch
    return batch[0], batch[0]


def _logits(output: Any) -> Tensor:
    logits = logits_of(output)
    assert logits is not None
    return logits


def table(records: Sequence[dict[str, Any]]) -> str:
    """One line for each network, and how many passed everything."""
    if not records:
        return "No numbers are recorded yet.\n"
    order = [case.name for case in CASES]
    lines = []
    for each in sorted(records, key=lambda record: order.index(record["network"])):
        marks = ["yes" if each[check] else "no" for check in CHECKS]
        inputs = ", ".join(f"`{name}`" if name != "one tensor" else name for name in each["inputs"])
        more = f" and {len(each['at']) - 1} more" if len(each["at"]) > 1 else ""
        lines.append(
            [
                each["network"],
                each["source"],
                inputs,
                each["task"],
                f"`{each['at'][-1]}`{more}",
                f"{100 * each['share']:.1f}",
                *marks,
            ]
        )
    passed = sum(all(each[check] for check in CHECKS) for each in records)
    heads = ["network", "written by", "inputs", "task", "attachments at", "weights, %", "drop-in", "loaded", "detached"]
    return f"{markdown_table(heads, lines, 6)}\n{passed} of {len(records)} passed everything.\n"


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.models", description=__doc__, formatter_class=form)
    parser.add_argument(
        "--table", action="store_true", help="only put the table of what was recorded into the document"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these networks alone")
    parser.add_argument("--output", type=Path, default=Path("results/models"))
    parser.add_argument("--into", type=Path, default=Path("docs/models.md"))
    options = parser.parse_args(arguments)
    for case in [] if options.table else CASES:
        path = options.output / f"{case.name.lower().replace(',', '').replace(' ', '-')}.json"
        if (options.only is None or case.name in options.only) and not path.exists():
            write_json(path, walk(case))
            print(path, flush=True)
    paths = sorted(options.output.glob("*.json")) if options.output.is_dir() else []
    text = table([json.loads(path.read_text()) for path in paths])
    if options.table:
        update_between_markers(options.into, "models", text)
    else:
        print(text)
