"""Do attachments help the networks that people use?

    python -m research.pretrained --data DIR --network lite0     measure what has no record yet; --table: only render

Rows: scores of the plain network (max-probability, margin), every post-hoc score of :mod:`abnn.baselines.posthoc` (entropy, energy
and max-logit are among them), fitted to the parts for fitting and calibrating, and ``abnn``: attached, fitted to the first part and
calibrated on the second with default settings, judged by its default score; "abnn (margin)" and "abnn (failures)" are other scores of the same predictions,
"abnn (closed form)" the same without training, ``epochs=0``. Columns, with A(u, v) the AUROC of "an input of
v has a larger score than one of u" (:func:`columns`):

near, far        A(ordinary, near); mean over far sets of A(ordinary, far set)
semi < near      mean over semi kinds of A(kind, near)
readable < near  the same of those images of a kind that the row's own prediction has right; kinds without any do not count
semi < far       mean over semi kinds and far sets of A(kind, far set)
errors           A(right, wrong), of the row's own predictions on ordinary images
mistakes         the same over ordinary and semi images together
failures         the same over all test images together; of an unknown class every prediction is wrong
accuracy         on ordinary images; on semi: mean over kinds. Of a category, the mean probability of its classes counts

One record for each row and split, without arrays: <output>/<network>/<row>-seed<split>.json.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader

import abnn
from abnn.baselines.posthoc import POSTHOC, PostHocModel, build_posthoc
from abnn.errors import unknown
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import Record, find_records, record_path, write_record
from abnn.evaluate.summary import Numbers
from abnn.metrics import auroc
from abnn.predict import Plain, Prediction
from research.compare import has_record
from research.pretrained.data import CROP, Images, ImageSet, Split
from research.pretrained.networks import NETWORKS, Pretrained, by_name
from research.records import rounded
from research.tables import Column, markdown_table, render, update_between_markers

PLAIN = ("max-probability", "margin")
ATTACHED: dict[str, dict[str, Any]] = {
    "abnn": {"epochs": None, "score": "combined"},
    "abnn (margin)": {"epochs": None, "score": "margin"},
    "abnn (failures)": {"epochs": None, "score": "failures"},
    "abnn (closed form)": {"epochs": 0, "score": "combined"},
}
ROWS = (*PLAIN, *POSTHOC, *ATTACHED)
NAMES = (
    "near", "far", "semi < near", "readable < near", "semi < far", "errors", "mistakes", "failures", "accuracy", "accuracy on semi",
)  # fmt: skip
SHORT = ("near", "far", "semi < far", "failures", "errors", "accuracy on semi")
"""Columns of the README."""
NOTHING = "No numbers are recorded yet.\n"
COLUMNS = [Column(name, f"columns.{name}") for name in NAMES]
BATCH, FIT_BATCH = 50, 64
Configs = dict[str, dict[str, Any]]  # settings of each row


def run(
    network: Pretrained,
    data: str | Path,
    splits: int = 3,
    output: str | Path = "results/pretrained",
    rows: Sequence[str] = ROWS,
    *,
    limit: int | None = None,
    crop: float = CROP,
    progress: bool = True,
    note: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Measure the rows that have no record yet, and return the paths of all records.

    limit  use at most so many images of each test set, for rehearsals
    crop   the share of a photograph's shorter side that is taken from its middle; 1 for images that were cut before
    A record that was made with other settings is an error, as is a row whose extra is not installed.
    """
    for row in rows:
        if row not in ROWS:
            raise unknown("rows", row, ROWS)
        if row in POSTHOC:
            build_posthoc(row).prepare()
    images, paths = Images(data, network.size, network.classes, limit, crop), []
    for number in range(splits):
        common = {"network": network.name, "split": number, "limit": limit, "crop": crop}
        configs = settings_of(rows, common)
        places = {row: record_path(output, network.name, row, number) for row in rows}
        missing = [row for row in rows if not has_record(places[row], configs[row])]
        paths += list(places.values())
        if not missing:
            note(f"{network.name}, split {number}: recorded before")
            continue
        split = images.split(number)
        measured = itertools.chain(
            measure_plain(network, split, {row: configs[row] for row in missing if row not in ATTACHED}, number),
            measure_attached(
                network, split, {row: configs[row] for row in missing if row in ATTACHED}, number, progress
            ),
        )
        for each in measured:
            write_record(rounded(each, 16), output, network.name, device(), arrays=False, summary=columns)
            note(f"{network.name}, split {number}: {each.name}")
    return paths


def settings_of(rows: Sequence[str], common: dict[str, Any]) -> Configs:
    """The settings of each row: those that all have, and its own."""
    configs: Configs = {row: common for row in rows}
    configs |= {row: {**common, "posthoc": build_posthoc(row).settings} for row in rows if row in POSTHOC}
    fits = {"preset": "default", "batch": FIT_BATCH}
    return configs | {row: {**common, **fits, **ATTACHED[row]} for row in rows if row in ATTACHED}


def measure_plain(network: Pretrained, split: Split, configs: Configs, seed: int) -> Iterator[Evaluation]:
    """Yield the rows of the plain network that ``configs`` names, all from one pass over the test sets."""
    if not configs:
        return
    times = [time.perf_counter()]
    plain = Plain(network.build(split.classes).to(device()), split.fit[0][0][None])
    chosen = [row for row in configs if row in POSTHOC]
    model: Plain | PostHocModel = PostHocModel(plain, chosen) if chosen else plain
    if isinstance(model, PostHocModel):
        model.fit(DataLoader(ConcatDataset([split.fit, split.calibrate]), BATCH))  # type: ignore[list-item]
    times.append(time.perf_counter())
    sets = [evaluate(model, each) for each in split.tests]
    times.append(time.perf_counter())
    for row, config in configs.items():
        yield as_row(row, row, sets, seed, config, dict(zip(("fitting", "evaluation"), np.diff(times).tolist())))


def measure_attached(
    network: Pretrained, split: Split, configs: Configs, seed: int, progress: bool
) -> Iterator[Evaluation]:
    """Yield the rows of the attached network that ``configs`` names; those of one number of epochs come from one fit."""
    for epochs in dict.fromkeys(config["epochs"] for config in configs.values()):
        own = {row: config for row, config in configs.items() if config["epochs"] == epochs}
        times = [time.perf_counter()]
        model = abnn.attach(network.build(split.classes).to(device()), split.fit[0][0][None].to(device()), seed=seed)
        batches = loader(split.fit, FIT_BATCH, torch.Generator().manual_seed(seed))
        abnn.fit(model, batches, epochs=epochs, seed=seed, progress=progress)
        times.append(time.perf_counter())
        abnn.calibrate(model, loader(split.calibrate, BATCH), progress=progress)
        times.append(time.perf_counter())
        sets = [evaluate(model, each) for each in split.tests]
        times.append(time.perf_counter())
        seconds = dict(zip(("fitting", "calibration", "evaluation"), np.diff(times).tolist()))
        for row, config in own.items():
            yield as_row(row, config["score"], sets, seed, config, seconds)


def as_row(
    name: str, score: str, sets: Sequence[SetResult], seed: int, config: dict[str, Any], seconds: dict[str, float]
) -> Evaluation:
    """What is recorded of a row: one score of each set."""
    kept = tuple(replace(each, scores={score: each.scores[score]}) for each in sets)
    return Evaluation(name, score, kept, None, seed, config, seconds)


def evaluate(model: Any, images: ImageSet) -> SetResult:
    """One test set; of its probabilities those of the true class and of the best other one, as classes 0 and 1."""

    def of_groups(prediction: Prediction) -> Tensor:
        none = prediction.probs.new_zeros(len(prediction.probs))
        return torch.stack([prediction.probs[:, list(g)].mean(1) if g else none for g in images.groups], 1)

    stated = of_groups if images.groups else None
    result = evaluate_set(model, loader(images, BATCH), images.name, images.tier, shown=0, stated=stated)
    if not result.labelled:
        return replace(result, probs=result.probs.max(1, keepdims=True))
    places = np.arange(len(result)), result.labels
    others = result.probs.copy()
    others[places] = -1
    probs = np.stack([result.probs[places], others.max(1)], 1)
    return replace(result, probs=probs, labels=np.zeros_like(result.labels))


def columns(evaluation: Evaluation, by_score: bool = True) -> Numbers:
    """The columns of the module's docstring, and by set its accuracy and A(ordinary, set). Without errors, no "errors"; so of the others."""
    scores = {each.name: each.scores[evaluation.score] for each in evaluation.sets}
    ordinary = next(each for each in evaluation.sets if each.tier == "id")
    good = scores[ordinary.name]
    semi = [each.name for each in evaluation.tier("semi")]
    far = [each.name for each in evaluation.tier("full") if each.name != "near"]
    accuracy = {each.name: float(each.correct.mean()) for each in evaluation.sets if each.labelled}
    asked_of = {
        "errors": [ordinary],
        "mistakes": [each for each in evaluation.sets if each.labelled],
        "failures": evaluation.sets,
    }
    told_apart = {name: right_below_wrong(sets, evaluation.score) for name, sets in asked_of.items()}
    readable = [
        auroc(scores[each.name][each.correct], scores["near"]) for each in evaluation.tier("semi") if each.correct.any()
    ]
    numbers = {
        "near": auroc(good, scores["near"]),
        "far": float(np.mean([auroc(good, scores[each]) for each in far])),
        "semi < near": float(np.mean([auroc(scores[each], scores["near"]) for each in semi])),
        **({"readable < near": float(np.mean(readable))} if readable else {}),
        "semi < far": float(np.mean([auroc(scores[each], scores[other]) for each in semi for other in far])),
        **{name: value for name, value in told_apart.items() if value is not None},
        "accuracy": accuracy[ordinary.name],
        "accuracy on semi": float(np.mean([accuracy[each] for each in semi])),
    }
    detection = {name: auroc(good, values) for name, values in scores.items() if name != ordinary.name}
    return {"columns": numbers, "accuracy": accuracy, "detection": detection}


def right_below_wrong(sets: Sequence[SetResult], score: str) -> float | None:
    """A(right, wrong) over all images of some sets; every prediction of an unknown class is wrong. None where all are right, or none is."""
    right = np.concatenate([each.correct if each.labelled else np.zeros(len(each), bool) for each in sets])
    values = np.concatenate([each.scores[score] for each in sets])
    return None if right.all() or not right.any() else auroc(values[right], values[~right])


def loader(images: ImageSet, batch: int, shuffled_by: torch.Generator | None = None) -> DataLoader[Any]:
    return DataLoader(images, batch, shuffle=shuffled_by is not None, generator=shuffled_by)  # type: ignore[arg-type]


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def table(output: Path, network: str) -> str:
    """The table of a network's records; one sentence if there are none."""
    records = find_records(output, network) if output.is_dir() else []
    if not records:
        return NOTHING
    rows = {record.name for record in records}
    return render(records, COLUMNS, [row for row in ROWS if row in rows])


def every_table(output: Path) -> str:
    """The tables of all networks that have records, each below its name."""
    return "\n".join(f"## {name}\n\n{table(output, name)}" for name in by_network(output)) or NOTHING


def by_network(output: Path) -> dict[str, list[Record]]:
    """All records of each network: first those of :data:`NETWORKS`, then the others by name."""
    networks: dict[str, list[Record]] = {name: [] for name in NETWORKS}
    for record in find_records(output) if output.is_dir() else ():
        networks.setdefault(record.experiment, []).append(record)
    return {name: records for name, records in networks.items() if records}


def summary(output: Path) -> str:
    """One row for each network: the columns of abnn, and in brackets the best of all other scores of each column."""
    body = [[name, *map(in_brackets, pairs.values())] for name, pairs in beside_the_best(output).items()]
    return markdown_table(["network", *NAMES], body) if body else NOTHING


def overview(output: Path) -> str:
    """One row for each column of the README: means over all networks, and on how many of them abnn is ahead or level."""
    networks = list(beside_the_best(output).values())
    body = []
    for name in SHORT:
        ours, best = np.mean([pairs[name] for pairs in networks], axis=0) if networks else (0.0, 0.0)
        ahead = sum(is_level(*pairs[name]) for pairs in networks)
        body.append([name, f"{ours:.1f}", f"{best:.1f}", f"{ahead} of {len(networks)}"])
    heads = ["", "abnn", "best other score of each network", "abnn ahead or level on"]
    return markdown_table(heads, body) if networks else NOTHING


def beside_the_best(output: Path) -> dict[str, dict[str, tuple[float, float]]]:
    """Of each network and column: the mean of abnn, and the largest of any other score, in percent.

    Means are over the splits that abnn has.
    """
    networks = {}
    for network, records in by_network(output).items():
        splits = {record.seed for record in records if record.name == "abnn"}
        means = means_of([record for record in records if record.seed in splits])
        others = [numbers for row, numbers in means.items() if row not in ATTACHED]
        if "abnn" in means and others:
            networks[network] = {name: (means["abnn"][name], max(each[name] for each in others)) for name in NAMES}
    return networks


def means_of(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Of each row the means of all columns over all splits, in percent; NaN where a column is undefined."""
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.name, []).append(record)
    return {
        row: {
            name: 100 * float(np.mean([each.numbers.get(f"columns.{name}", np.nan) for each in own])) for name in NAMES
        }
        for row, own in rows.items()
    }


def is_level(ours: float, best: float) -> bool:
    """Whether our number is at least the other one, as they are shown."""
    return round(ours, 1) >= round(best, 1)


def in_brackets(pair: tuple[float, float]) -> str:
    """Our number, bold where it is level, and the other one in brackets."""
    ours, best = pair
    return f"{f'**{ours:.1f}**' if is_level(ours, best) else f'{ours:.1f}'} ({best:.1f})"


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.pretrained", description=__doc__, formatter_class=form)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=Path, metavar="DIR", help="the images, see research/pretrained/data.py")
    what.add_argument("--table", action="store_true", help="only put the tables of what was recorded into the document")
    parser.add_argument("--network", default="lite0", help="lite0, lite1, lite2, timm/NAME, or a name of torchvision's")
    parser.add_argument(
        "--weights", type=Path, metavar="FILE", help="of timm's or torchvision's; else they are downloaded"
    )
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="ROW", help="only these")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images of each test set, for rehearsals")
    parser.add_argument(
        "--crop", type=float, default=CROP, help="share of photographs to take; 1: they were cut before"
    )
    parser.add_argument("--output", type=Path, default=Path("results/pretrained"), help="folder of the records")
    parser.add_argument("--into", type=Path, default=Path("."), help="the folder with README.md and docs/")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        update_between_markers(options.into / "docs/pretrained.md", "pretrained summary", summary(options.output))
        update_between_markers(options.into / "docs/pretrained-scores.md", "pretrained", every_table(options.output))
        update_between_markers(options.into / "README.md", "pretrained", overview(options.output))
        return
    settings: dict[str, Any] = {
        "limit": options.limit,
        "crop": options.crop,
        "progress": not options.quiet,
        "note": print,
    }
    network = by_name(options.network, options.weights)
    run(network, options.data, options.splits, options.output, options.rows, **settings)
    print(table(options.output, network.name), end="")
