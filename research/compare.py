"""Every method and every post-hoc score under the same conditions, over several seeds, as run records.

All methods get the same data and the same backbone, and on the embedded digits the same number of epochs over all their
stages. What is particular to a data set is in :mod:`research.settings`; everything else is each method's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from abnn.baselines import Method, TrainConfig, Trained, make_method, train_method
from abnn.baselines.posthoc import POSTHOC, PostHocModel, build_posthoc
from abnn.errors import AbnnError, InputError, explain, unknown
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records import read_record, record_path, write_record
from abnn.predict import Plain
from research.metrics import summarise
from research.records import rounded
from research.tables import Column
from research.tasks import Task, load_task

EXPERIMENT = "compare-digits"
METHODS = (
    *("threshold", "mc-dropout", "deep-ensemble", "p-sgld", "bbp", "sde-net", "oe", "woods", "vboe"),
    *("abnn", "abnn:paper", "abnn:authors"),
)
COLUMNS = [
    Column("accuracy", "accuracy.handwritten digits"),
    Column("AUROC id/semi", "tiers.auroc_id_below_semi"),
    Column("AUROC semi/full", "tiers.auroc_semi_below_full"),
    Column("AUROC id/full", "tiers.auroc_id_below_full"),
    Column("errors AUROC", "misclassification.printed digits.auroc"),
    Column("accuracy on semi", "accuracy.printed digits"),
]


def columns_of(task: Task) -> list[Column]:
    """The columns of a table of this task: accuracy, detection of each other set, and of errors."""
    if task.name == "digits":
        return COLUMNS
    known = next(name for name, tier, _ in task.sets if tier == "id")
    return [
        Column("accuracy", f"accuracy.{known}"),
        *(Column(f"AUROC {name}", f"detection.{name}.auroc") for name, tier, _ in task.sets if tier != "id"),
        Column("errors AUROC", f"misclassification.{known}.auroc"),
    ]


def run_method(
    task: Task,
    method: Method,
    epochs: int | None = None,
    seed: int = 0,
    progress: bool = True,
    config: TrainConfig | None = None,
) -> tuple[Evaluation, Trained]:
    """Train one method and evaluate it.

    epochs  None: as many as the task says
    """
    epochs = task.epochs_of(method) if epochs is None else epochs
    started = time.perf_counter()
    trained = train_method(method, task.backbone, task.loader(), epochs, seed=seed, progress=progress, config=config)
    seconds = {"training": time.perf_counter() - started}
    started = time.perf_counter()
    sets = task.evaluate(trained)
    seconds["evaluation"] = time.perf_counter() - started
    record = task.config(method, epochs)
    return Evaluation(display_name(method), trained.score, sets, None, seed, record, seconds), trained


def run_posthoc(task: Task, name: str, network: Callable[[], Trained], epochs: int, seed: int) -> Evaluation:
    """One post-hoc score on a plain trained network."""
    build_posthoc(name).prepare()  # a missing extra is an error now, not after training
    trained = network()
    started = time.perf_counter()
    model = PostHocModel(Plain(trained.network, task.train.x[:1]), [name])
    model.fit(task.loader())
    sets = task.evaluate(model)
    config = {**task.config(trained.method, epochs), "posthoc": model.scores[name].settings}
    seconds = {"fitting and evaluation": time.perf_counter() - started}
    return Evaluation(f"{name} (post-hoc)", model.score, sets, None, seed, config, seconds)


def display_name(method: Method) -> str:
    return method.name if method.variant == "reference" else f"{method.name} ({method.variant})"


def run_compare(
    methods: Sequence[str] = METHODS,
    seeds: Iterable[int] = range(5),
    output: str | Path = "results",
    progress: bool = True,
    *,
    posthoc: Sequence[str] | None = None,
    epochs: int | None = None,
    data: str = "digits",
    validation: bool = False,
    root: str | Path | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Train and evaluate what has no record yet, and return the paths of all records.

    methods  names, or "name:variant"
    posthoc  names of post-hoc scores, evaluated on the network of method "threshold"; None: all
    epochs   of every method; None: as many as the task says
    data     name of a task (:mod:`research.tasks`); root: where its data is kept
    output   folder of the records, in the experiment "compare-digits" ("compare-digits-validation" with validation)
    note     called with one line for each record

    A record that was made with other settings is an error: it must not end up in one table with the new ones.
    """
    chosen = [_split(each) for each in methods]
    scores = list(POSTHOC) if posthoc is None else list(posthoc)
    for name in scores:
        if name not in POSTHOC:
            raise unknown("posthoc", name, POSTHOC)
    experiment = f"compare-{data}" + ("-validation" if validation else "")
    paths: list[Path] = []

    def record(name: str, seed: int, config: dict[str, Any], run: Callable[[], Evaluation]) -> None:
        path = record_path(output, experiment, name, seed)
        exists = has_record(path, config)
        if not exists:
            write_record(rounded(run(), 16), output, experiment, images=False, summary=summarise)
        note(f"seed {seed}: {name}" + (f" (recorded before in {path})" if exists else ""))
        paths.append(path)

    for seed in seeds:
        task = load_task(data, seed, validation, root)
        for name, variant in chosen:
            method = task.method(name, variant)
            count = task.epochs_of(method) if epochs is None else epochs
            run = partial(_evaluated, task, method, count, seed, progress)
            record(display_name(method), seed, task.config(method, count), run)
        threshold = task.method("threshold")
        count = task.epochs_of(threshold) if epochs is None else epochs
        data_and_epochs = (task.backbone, task.loader(), count)
        network = cache(partial(train_method, threshold, *data_and_epochs, seed=seed, progress=progress))
        for name in scores:
            config = {**task.config(threshold, count), "posthoc": POSTHOC[name]().settings}
            record(f"{name} (post-hoc)", seed, config, partial(run_posthoc, task, name, network, count, seed))
    return paths


def _evaluated(task: Task, method: Method, epochs: int, seed: int, progress: bool) -> Evaluation:
    return run_method(task, method, epochs, seed, progress)[0]


def _split(text: str) -> tuple[str, str]:
    name, _, variant = text.partition(":")
    make_method(name, variant or "reference")  # a wrong name is an error now, not after an hour
    return name, variant or "reference"


def has_record(path: Path, config: dict[str, Any]) -> bool:
    """Whether the run has a record; a damaged one counts as none."""
    if not path.exists():
        return False
    try:
        record = read_record(path)
        if record.arrays_file:
            record.evaluation()
    except AbnnError:
        return False
    if record.config != read_back(config):
        fix = "Choose another output folder, or delete the old records."
        raise InputError(explain("output", f"{path}, made with other settings", "records of the same settings", fix))
    return True


def read_back(config: dict[str, Any]) -> dict[str, Any]:
    """As a record gives it back: tuples become lists."""
    return json.loads(json.dumps(config))
