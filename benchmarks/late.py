"""Quality against cost of late attachments: the embedded digits, with attachments at the last 1, 2, 3 and at all blocks.

    python benchmarks/late.py                  one seed, into results/late/digits.json, and the table into docs/cost.md
    python benchmarks/late.py --seeds 3        more, as in the record; about three minutes each on two cores
    python benchmarks/late.py --table          the table again, from the record

A digit reader like that of `abnn demo`, but with six blocks, is trained once for each seed; then attachments are fitted on the
frozen network at each choice of places. Times are those of a prediction with default settings,
side by side in one run.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from timing import ROOT, Plan, interleaved, ratio

import abnn
from abnn.data.digits import load_digits
from abnn.demo.digits import BACKBONE, BATCH, COLUMNS, EPOCHS, train_backbone
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.provenance import provenance
from abnn.evaluate.summary import flatten, summarise
from abnn.files import read_json, write_json
from abnn.predict import Plain
from research.tables import markdown_table, update_between_markers
from research.tasks import Task, load_task

RECORD = ROOT / "results" / "late" / "digits.json"
PAGE = ROOT / "docs" / "cost.md"
BLOCKS = 6
LAST = (1, 2, 3, BLOCKS)
PLAIN = "none: plain network"


def name_of(last: int, blocks: int) -> str:
    return "all blocks" if last == blocks else "last block" if last == 1 else f"last {last} blocks"


def run_seed(seed: int, blocks: int, lasts: tuple[int, ...], epochs: int | None, plan: Plan) -> dict[str, Any]:
    """Numbers of one seed: metrics, size and time by row."""
    task, data = load_task("digits", seed), load_digits(seed)
    network = abnn.build_backbone("paper-resnet", 10, 1, **{**BACKBONE, "blocks": blocks})
    train_backbone(network, data, seed, progress=False)
    models: dict[str, Any] = {PLAIN: Plain(network, data.train.x[:1])}
    for last in lasts:
        model = abnn.attach(network, data.train.x[:1], last=last, seed=seed)
        abnn.fit(model, task.loader(), epochs=epochs, seed=seed, progress=False)
        models[name_of(last, blocks)] = model
    x = data.test.x[:BATCH]
    work = {name: lambda model=model: model.predict(x) for name, model in models.items()}  # type: ignore[misc]
    times = interleaved(work, torch.device("cpu"), plan)
    return {
        name: {
            "metrics": metrics(model, task),
            "size": getattr(model, "attachment_size", 0),
            "ms_per_image": times[name]["median"] / len(x),
            "times_plain": ratio(times[name], times[PLAIN])["ratio"],
        }
        for name, model in models.items()
    }


def metrics(model: Any, task: Task) -> dict[str, float]:
    numbers = flatten(summarise(Evaluation("late", model.score, task.evaluate(model)), by_score=False))
    return {title: numbers[path] for title, path in COLUMNS.items()}


def table(record: Mapping[str, Any]) -> str:
    """Means over the seeds, with standard deviations where there are several."""
    titles = list(COLUMNS)
    head = ["attachments at", "learned numbers", *titles, "ms per image", "times plain network"]
    lines = []
    names = [PLAIN, *(name_of(last, record["blocks"]) for last in range(1, record["blocks"] + 1))]
    for name in (each for each in names if each in record["rows"]):
        rows = record["rows"][name]
        cells = [spread([100 * row["metrics"][title] for row in rows]) for title in titles]
        cost = [statistics.median(row[key] for row in rows) for key in ("ms_per_image", "times_plain")]
        lines.append([name, f"{rows[0]['size']:,}", *cells, f"{cost[0]:.2f}", f"{cost[1]:.1f}"])
    seeds, threads = len(record["seeds"]), record["threads"]
    where = f"{seeds} seed{'s' * (seeds > 1)}, batches of {BATCH}, {threads} thread{'s' * (threads > 1)}"
    return f"{markdown_table(head, lines)}\nMean ± standard deviation in percent, median times; {where}."


def spread(values: list[float]) -> str:
    mean = f"{statistics.mean(values):.1f}"
    return f"{mean} ± {statistics.stdev(values):.1f}" if len(values) > 1 else mean


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RECORD)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--table", action="store_true", help="only put the table into the page again")
    parser.add_argument("--tiny", action="store_true", help="does it run? One seed, two blocks, one epoch")
    options = parser.parse_args(arguments)
    if not options.table:
        blocks, lasts, epochs = (2, (1, 2), 1) if options.tiny else (BLOCKS, LAST, EPOCHS)
        plan = Plan(rounds=1, warm_up=1, least=0.0) if options.tiny else Plan(rounds=15, warm_up=3)
        seeds = list(range(1 if options.tiny else options.seeds))
        record: dict[str, Any] = {"format": "abnn-late-1", **provenance(), "threads": torch.get_num_threads()}
        record |= {"seeds": [], "blocks": blocks, "backbone": BACKBONE, "epochs": epochs, "rows": {}}
        for seed in seeds:
            for name, row in run_seed(seed, blocks, lasts, epochs, plan).items():
                record["rows"].setdefault(name, []).append(row)
            record["seeds"].append(seed)  # those that are done, should it be stopped
            options.output.parent.mkdir(parents=True, exist_ok=True)
            write_json(options.output, record)
            print(f"seed {seed} done", flush=True)
    made = table(read_json(options.output))
    update_between_markers(options.page, "late digits", made)
    print(made)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
