"""What is each Bayesian form worth, and what do draws and views add to one pass?

    python -m research.worth zoo                                          measure what has no record yet
    python -m research.worth digits
    python -m research.worth mnist --data DIR                             or svhn; --train and --limit: fewer images
    python -m research.worth pretrained --data DIR --network lite0        the images of research.pretrained
    python -m research.worth --table                                      only render

Every row is of the same network and the same held-out data (:data:`FORMS`):

plain energy          the energy of the network alone; "five views": of its mean over five shifted images
without posteriors    trained attachments with mean weights; the score learns from what the networks say alone: no
                      variance, no witness, no direction, nothing that grows with distance
closed form           nothing is trained: the posterior of linear attachments, ``epochs=0``
default               both together, one pass with mean weights
ten draws             the default with ten draws: as fitted, or of the widest posterior that held-out data allow
disagreement          mutual information of the ten wide draws, as a score of its own
five views            the default looking at five shifted images

Columns, with A(u, v) the AUROC of "an input of v has a larger score than one of u": outliers, the mean over sets of
A(ordinary, set); semi < outliers; errors, A(right, wrong) on ordinary inputs; failures, the same over all sets, where
every prediction about an outlier is wrong; accuracy; accuracy on semi. One record for each job.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import abnn
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import SetResult
from abnn.evaluate.provenance import provenance
from abnn.files import write_json
from abnn.metrics import auroc
from abnn.model.views import can_move, shifted
from abnn.predict import Prediction
from abnn.scores.combined import NEVER
from abnn.train.combine import learn, members
from research.pretrained.run import right_below_wrong
from research.tables import markdown_table, update_between_markers
from research.worth.jobs import BENCHMARKS, DEVICE, Job

DRAWS, VIEWS = 10, 5
COLUMNS = ("outliers", "semi < outliers", "errors", "failures", "accuracy", "accuracy on semi")
FORMS = (
    "default", "plain energy", "plain energy, five views", "without posteriors", "closed form", "ten draws", "ten wide draws",
    "disagreement of wide draws", "five views",
)  # fmt: skip
Columns = dict[str, float]


class PlainEnergy:
    """The network alone; its score is the energy. With several views: of the mean probability and the mean energy."""

    score = "energy"

    def __init__(self, network: torch.nn.Module, views: int) -> None:
        self.network, self.views = network, views

    def predict(self, x: Any, draws: int | None = None, seed: int | None = 0) -> Prediction:
        with torch.inference_mode():
            x = x.to(DEVICE)
            looks = [x, *(shifted(x, view) for view in range(1, self.views))]
            logits = torch.stack([self.network(each) for each in looks]).float()
        probs = logits.softmax(-1).mean(0, keepdim=True)
        return Prediction(probs, default="energy", own={"energy": -logits.logsumexp(-1).mean(0)})


class WithViews:
    """An attached network whose predictions look at several views."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, x: Any, draws: int | None = None, seed: int | None = 0) -> Prediction:
        return self.model.predict(x, seed=seed, views=VIEWS)


def measure(job: Job) -> dict[str, Any]:
    """Return the record of one job."""
    times = [time.perf_counter()]
    columns: dict[str, Columns] = {}
    example = torch.stack([job.fit[0][0]]).to(DEVICE)
    views = can_move(example.shape[1:], example.dtype)

    def note(form: str, model: Any, score: str, draws: int | None = None) -> list[SetResult]:
        sets = [evaluate_set(model, job.loader(data), name, tier, draws, shown=0) for name, tier, data in job.sets]
        columns[form] = columns_of(sets, score)
        times.append(time.perf_counter())
        return sets

    note("plain energy", PlainEnergy(job.network, 1), "energy")
    if views:
        note("plain energy, five views", PlainEnergy(job.network, VIEWS), "energy")
    model = abnn.attach(job.network, example, seed=job.seed)

    def fit(epochs: int | None) -> None:
        torch.manual_seed(job.seed)
        abnn.fit(model, job.loader(job.fit, shuffle=True), epochs=epochs, seed=job.seed, progress=False)

    fit(0)
    note("closed form", model, "combined")
    fit(None)
    note("default", model, "combined")
    note("ten draws", model, "combined", DRAWS)
    if views:
        note("five views", WithViews(model), "combined")
    wide = copy.deepcopy(model)
    width = abnn.widen(wide, job.loader(job.held_out))
    sets = note("ten wide draws", wide, "combined", DRAWS)
    columns["disagreement of wide draws"] = columns_of(sets, "mutual-information")
    with no_posteriors():
        fit(0)
    note("without posteriors", model, "combined")
    return {
        "name": job.name, "seed": job.seed, "device": DEVICE, **provenance(), "width": width,
        "data": {each.name: each.data_hash for each in sets}, "columns": columns, "seconds": times[-1] - times[0],
    }  # fmt: skip


def columns_of(sets: Sequence[SetResult], score: str) -> Columns:
    """Return the columns of the module's docstring; those that are undefined are left out."""
    scores = {each.name: each.scores[score] for each in sets}
    (ordinary,) = (each for each in sets if each.tier == "id")
    semi, outliers = ([each.name for each in sets if each.tier == tier] for tier in ("semi", "full"))
    numbers = {
        "outliers": float(np.mean([auroc(scores[ordinary.name], scores[each]) for each in outliers])),
        "errors": right_below_wrong([ordinary], score),
        "failures": right_below_wrong(sets, score),
        "accuracy": float(ordinary.correct.mean()),
    }
    if semi:
        pairs = [auroc(scores[each], scores[other]) for each in semi for other in outliers]
        on_semi = [each.correct.mean() for each in sets if each.tier == "semi"]
        numbers |= {"semi < outliers": float(np.mean(pairs)), "accuracy on semi": float(np.mean(on_semi))}
    return {name: value for name, value in numbers.items() if value is not None}


@contextmanager
def no_posteriors() -> Iterator[None]:
    """Within it, ``fit`` learns the score from what the networks say alone."""

    def hidden(combined: Any) -> list[int]:
        said = [name for name in combined.task_parts if not name.startswith("widened")]
        return [place for place, name in enumerate(combined.names) if name not in said]

    def gather(model: Any, *rest: Any) -> dict[str, Tensor]:
        groups = members.gather_groups(model, *rest)
        for group in groups.values():
            group[:, hidden(model.combined)] = 0
        return groups

    def fit_members(combined: Any, *rest: Any) -> None:
        members.fit_members(combined, *rest)
        combined.linear[:, hidden(combined)] = combined.inner[:, hidden(combined)] = 0

    def no_limits(combined: Any, *rest: Any) -> None:
        combined.bounds.fill_(NEVER)

    def no_terms(model: Any, *rest: Any) -> None:
        model.combined.readable.fill_(NEVER)

    changes: dict[str, Any] = {
        "gather_groups": gather,
        "fit_members": fit_members,
        "_set_bounds": no_limits,
        "_set_readable": no_terms,
    }
    with patch.multiple(learn, **changes):
        yield


def table(records: Sequence[dict[str, Any]]) -> str:
    """Return the default's numbers, and how far every other form is above or below them, over the jobs that have both."""
    rows = []
    for form in FORMS:
        own = [each["columns"] for each in records if form in each["columns"]]
        rows.append([form, str(len(own)), *(cell(own, form, column) for column in COLUMNS)])
    return markdown_table(["form", "networks", *COLUMNS], rows)


def cell(jobs: Sequence[dict[str, Columns]], form: str, column: str) -> str:
    """Return a mean in percent: of the default itself, or of another form's gain over it."""
    both = [each for each in jobs if column in each[form] and column in each["default"]]
    values = [(each[form][column], each["default"][column]) for each in both]
    if not values:
        return "–"
    mean, of_default = 100 * np.mean(values, axis=0)
    return f"{mean:.1f}" if form == "default" else f"{round(mean - of_default, 1) + 0:+.1f}"


def tables(output: Path) -> str:
    """Return the tables of all benchmarks that have records."""
    parts = []
    for folder in sorted(output.iterdir()) if output.is_dir() else []:
        records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
        if records:
            parts.append(f"**{folder.name}**\n\n{table(records)}")
    return "\n".join(parts) or "No numbers are recorded yet.\n"


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.worth", description=__doc__, formatter_class=form)
    parser.add_argument("benchmark", nargs="?", choices=list(BENCHMARKS))
    parser.add_argument("--table", action="store_true", help="only put the tables of what was recorded into the page")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where data sets or images are")
    parser.add_argument("--network", default="lite0", help="of pretrained: lite0, lite1, lite2, timm/NAME, or NAME")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="of the network; else they are downloaded")
    parser.add_argument("--splits", type=int, default=3, help="of pretrained")
    parser.add_argument("--crop", type=float, default=1.0, help="of photographs, see research.pretrained")
    parser.add_argument("--train", type=int, metavar="N", help="at most N training images of mnist and svhn")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images of each test set")
    parser.add_argument("--part", default="0/1", metavar="I/N", help="every Nth job from the Ith on, to share them out")
    parser.add_argument("--output", type=Path, default=Path("results/worth"), help="folder of the records")
    parser.add_argument("--into", type=Path, default=Path("docs/theory.md"), help="the page with the tables")
    options = parser.parse_args(arguments)
    if options.table or options.benchmark is None:
        update_between_markers(options.into, "worth", tables(options.output))
        return
    first, step = (int(each) for each in options.part.split("/"))
    folder = options.output / (options.network if options.benchmark == "pretrained" else options.benchmark)
    for name, seed, make in itertools.islice(BENCHMARKS[options.benchmark](options), first, None, step):
        path = folder / f"{name}-seed{seed}.json"
        if not path.exists():
            settings = {"train": options.train, "limit": options.limit}
            write_json(path, {"benchmark": options.benchmark, "settings": settings, **measure(make())})
            print(path, flush=True)
