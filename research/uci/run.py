"""Nine UCI sets, their standard splits, one hidden layer of 50 units (protein: 100): five methods side by side.

    python -m research.uci FOLDER         measure what has no record yet; --table: only render

FOLDER has one NAME.npz for each set, see :mod:`research.uci.data`. One record for each set.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from abnn.metrics import auroc, regression
from research.tables import markdown_table, update_between_markers
from research.uci import methods
from research.uci.data import SETS, Split, load
from research.uci.networks import Stack, plan, train

MEMBERS = 5
RATES = [0.01, 0.05]
DECAYS = [1e-5, 1e-4, 1e-3]
TRIED = 3  # splits on which the decay is chosen
METHODS = ("plain", "dropout", "ensemble", "laplace", "ours")
HEADS = {"plain": "plain", "dropout": "MC dropout", "ensemble": "5-ensemble", "laplace": "Laplace", "ours": "abnn"}


def measure(folder: Path, file: str) -> dict[str, Any]:
    """Return the record of one set."""
    splits, digest = load(folder, file)
    hidden = 100 if file.startswith("protein") else 50
    started = time.process_time()
    decay = choose_decay(splits[:TRIED], hidden)
    networks = _train_all(splits, hidden, decay)
    trained = time.process_time()
    each = MEMBERS + len(RATES)
    rows = []
    for number, split in enumerate(splits):
        own = networks.pick(list(range(number * each, (number + 1) * each)))
        rows.append(measure_split(split, own, number))
    batch, epochs = plan(len(splits[0].train[1]))
    config = {
        "hidden": hidden, "decay": decay, "decays": DECAYS, "rates": RATES, "members": MEMBERS, "batch": batch,
        "epochs": epochs, "moved by": 3.0, "validation": 0.2, "seed": 0,
    }  # fmt: skip
    seconds = {"train": trained - started, "methods": time.process_time() - trained}
    return {"data": SETS[file], "sha256": digest, "config": config, "splits": rows, "cpu seconds": seconds, "device": "cpu", **provenance()}  # fmt: skip


def choose_decay(splits: list[Split], hidden: int) -> float:
    """Return the weight decay with the least mean squared error on validation data of some splits."""
    repeated = [split for split in splits for _ in DECAYS]
    x, y = (torch.stack([split.train[part] for split in repeated]) for part in (0, 1))
    stack = train(x, y, hidden, torch.tensor(DECAYS).repeat(len(splits)), torch.zeros(len(repeated)), seed=1)
    x, y = (torch.stack([split.validation[part] for split in repeated]) for part in (0, 1))
    errors = (stack(x) - y).square().mean(1).view(len(splits), len(DECAYS)).mean(0)
    return DECAYS[int(errors.argmin())]


def _train_all(splits: list[Split], hidden: int, decay: float) -> Stack:
    """The members of the ensemble, of which the first is the plain network, and one network for each rate of dropout; for every split."""
    each = MEMBERS + len(RATES)
    x, y = (torch.stack([split.train[part] for split in splits for _ in range(each)]) for part in (0, 1))
    rates = torch.tensor(([0.0] * MEMBERS + RATES) * len(splits))
    return train(x, y, hidden, torch.full((len(x),), decay), rates, seed=0)


def measure_split(split: Split, networks: Stack, number: int) -> dict[str, Any]:
    """Return all numbers of one split, for every method."""
    members = list(range(MEMBERS))
    dropped, rate = methods.dropout(networks.pick([MEMBERS + n for n in range(len(RATES))]), RATES, split, number)
    said: dict[str, Callable[[Tensor], methods.Said]] = {
        "plain": methods.plain(networks.pick([0]), split),
        "dropout": dropped,
        "ensemble": methods.ensemble(networks.pick(members), split),
        "laplace": methods.laplace(networks.module(0), split),
        "ours": methods.ours(networks.module(0), split, number),
    }
    found: dict[str, Any] = {"rate": rate}
    moved, y = split.moved(number), split.test[1].double().numpy()
    for name, say in said.items():
        here, there = say(split.test[0]), say(moved)
        numbers = regression(y, here.mean, here.std, here.low, here.high).to_dict()
        for key in ("rmse", "crps", "width"):
            numbers[key] *= split.unit
        numbers["nll"] += float(np.log(split.unit))
        wider = float(np.median(there.std) / np.median(here.std))
        found[name] = {**numbers, "moved auroc": auroc(here.score, there.score), "moved width": wider}
    return found


def table(records: list[dict[str, Any]]) -> str:
    """NLL of every set and method, mean over splits and its standard error; then what the methods do on average."""
    if not records:
        return "No numbers are recorded yet.\n"

    def values(record: dict[str, Any], method: str, key: str) -> np.ndarray:
        return np.array([split[method][key] for split in record["splits"]])

    def cells(record: dict[str, Any], key: str, digits: int) -> list[str]:
        means = [values(record, method, key).mean() for method in METHODS]
        errors = [values(record, method, key).std(ddof=1) / len(record["splits"]) ** 0.5 for method in METHODS]
        best = int(np.argmin(means))
        texts = [f"{mean:.{digits}f} ± {error:.{digits}f}" for mean, error in zip(means, errors)]
        return [f"**{text}**" if place == best else text for place, text in enumerate(texts)]

    heads = ["set", "splits", *(HEADS[method] for method in METHODS)]
    tables = []
    for title, key in (("Test NLL, nats", "nll"), ("Test RMSE", "rmse")):
        rows = [
            [r["data"], str(len(r["splits"])), *cells(r, key, 4 if r["data"] == "naval" and key == "rmse" else 3)]
            for r in records
        ]
        tables.append(f"{title}:\n\n{markdown_table(heads, rows)}")
    nll = np.array([[values(record, method, "nll").mean() for method in METHODS] for record in records])
    ranks = (nll[:, :, None] > nll[:, None, :]).sum(2) + 1
    measures = {
        "mean rank over NLL ↓": ranks.mean(0),
        "mean CRPS, relative to plain ↓": np.mean(
            [[values(r, m, "crps").mean() / values(r, "plain", "crps").mean() for m in METHODS] for r in records],
            axis=0,
        ),
        "coverage of 90 % intervals, %": 100 * _over_sets(records, "coverage"),
        "their width, relative to plain": np.mean(
            [[values(r, m, "width").mean() / values(r, "plain", "width").mean() for m in METHODS] for r in records],
            axis=0,
        ),
        "AUROC of moved inputs ↑": 100 * _over_sets(records, "moved auroc"),
        "worst set's AUROC ↑": 100
        * np.min([[values(r, m, "moved auroc").mean() for m in METHODS] for r in records], axis=0),
    }
    rows = [[name, *(f"{value:.2f}" for value in numbers)] for name, numbers in measures.items()]
    tables.append(f"Over all sets:\n\n{markdown_table(['', *(HEADS[method] for method in METHODS)], rows)}")
    return "\n".join(tables)


def _over_sets(records: list[dict[str, Any]], key: str) -> np.ndarray:
    means = [[np.mean([split[method][key] for split in record["splits"]]) for method in METHODS] for record in records]
    return np.mean(means, axis=0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m research.uci", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="where the sets are")
    parser.add_argument(
        "--table", action="store_true", help="only put the tables of what was recorded into the document"
    )
    parser.add_argument("--sets", nargs="*", default=list(SETS), help="files, without their ending")
    parser.add_argument("--output", type=Path, default=Path("results/uci"))
    parser.add_argument("--into", type=Path, default=Path("docs/regression.md"))
    options = parser.parse_args(arguments)
    if not options.table and options.folder is None:
        parser.error("FOLDER is missing: where NAME.npz of every set is")
    for file in [] if options.table else options.sets:
        path = options.output / f"{SETS[file]}.json"
        if not path.exists():
            write_json(path, measure(options.folder, file))
            print(path, flush=True)
    paths = [options.output / f"{name}.json" for name in SETS.values()]
    text = table([json.loads(path.read_text()) for path in paths if path.exists()])
    if options.table:
        update_between_markers(options.into, "uci", text)
    else:
        print(text)
