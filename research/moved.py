"""Are rows of a table refused that lie far from the data, and does the score grow with every step?

    python -m research.moved                 measure 20 networks, and write results/moved.json
    python -m research.moved --table         only put the sentence about them into docs/theory.md

A perceptron (64, 64) on breast cancer for each seed, attached, fitted and calibrated with all defaults. Every standardised column of the test rows is
moved by 1 to 1,000 standard deviations. Recorded: the shares of rows that are accepted, mean and median scores, and accuracies.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from research.tables import update_between_markers
from research.zoo.data import JOBS
from research.zoo.networks import perceptron
from research.zoo.run import BATCH, train

STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 20, 50, 100, 300, 1000)
SEEDS = 20


def measure(seed: int) -> dict[str, Any]:
    """Return what one network says about rows that are moved."""
    import torch

    job = JOBS["cancer"](seed)
    torch.manual_seed(seed)
    network = perceptron(30, 2)
    train(network, *job.train, seed)
    model = abnn.attach(network, job.train[0][:1], seed=seed)
    abnn.fit(model, DataLoader(TensorDataset(*job.train), BATCH, shuffle=True), seed=seed, progress=False)
    abnn.calibrate(model, DataLoader(TensorDataset(*job.calibrate), 200), progress=False)
    x, y = job.test
    with torch.no_grad():
        plain = network(x).argmax(1)
    said = [model.predict(x + step) for step in STEPS]
    return {
        "seed": seed,
        "accepted": [float(np.mean([each == "accept" for each in p.verdict])) for p in said],
        "mean": [float(p.score.mean()) for p in said],
        "median": [float(p.score.median()) for p in said],
        "accuracy": float((said[0].label == y).float().mean()),
        "plain accuracy": float((plain == y).float().mean()),
    }


def sentence(record: dict[str, Any]) -> str:
    """Return what was found, in words."""
    rows, moved = record["networks"], [place for place, step in enumerate(STEPS) if step >= 4]
    worst = max(100 * row["accepted"][place] for row in rows for place in moved)
    grows = {of: sum(bool((np.diff(row[of][1:]) > 0).all()) for row in rows) for of in ("mean", "median")}
    lost = 100 * np.mean([row["plain accuracy"] - row["accuracy"] for row in rows])
    return (
        f"{len(rows)} networks on breast cancer ([record](../results/moved.json)): of rows moved by 4 standard deviations or more, at most {worst:.1f} % are "
        f"accepted in any of them. From 1 to 1,000 standard deviations the mean score grows at every step in {grows['mean']} networks, the median in "
        f"{grows['median']}. Accuracy lost: {lost:.2f} points on average.\n"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m research.moved", description=__doc__)
    parser.add_argument("--table", action="store_true", help="only put the sentence into the document")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--output", type=Path, default=Path("results/moved.json"))
    parser.add_argument("--into", type=Path, default=Path("docs/theory.md"))
    options = parser.parse_args(arguments)
    if not options.table:
        found = [measure(seed) for seed in range(options.seeds)]
        write_json(options.output, {"steps": list(STEPS), **provenance(), "networks": found})
    text = sentence(json.loads(options.output.read_text()))
    print(text)
    update_between_markers(options.into, "moved", text)


if __name__ == "__main__":
    main()
