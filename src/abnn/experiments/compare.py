"""Every method and every post-hoc score under the same conditions, over several seeds, as run records.

All methods get the same data, the same backbone and the same number of epochs over all their stages. The embedded digits
have 17 batches per epoch where the methods' references have hundreds, so ``DIGITS`` says with which learning rates a
network learns there at all; everything else is each method's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, TensorDataset

from abnn.data.digits import Labelled, load_digits
from abnn.errors import AbnnError, InputError, MissingExtraError, explain, unknown
from abnn.evaluate import evaluate_set
from abnn.evaluation import Evaluation, SetResult
from abnn.methods import REGISTRY, Method, Trained, make_method, train_method
from abnn.methods.posthoc import POSTHOC, PostHocModel, build_posthoc
from abnn.predict import Plain
from abnn.records import read_record, record_path, write_record
from abnn.tables import Column

EPOCHS, DRAWS = 30, 10
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
QUICK: dict[str, Any] = {"lr": 1e-2, "optimizer": "adamw", "schedule": "cycle", "kaiming": False}
DIGITS: dict[str, dict[str, Any]] = {
    **{name: QUICK for name in ("threshold", "mc-dropout", "deep-ensemble", "oe")},
    "sde-net": {**QUICK, "diffusion_lr": 1e-2},
    "woods": {**QUICK, "tune_lr": 1e-2},
    "woods:authors": {**QUICK, "tune_lr": 1e-1, "tune_schedule": "cycle"},
    "bbp": {"lr": 1e-2, "schedule": "cycle"},
    "vboe": {"lr": 1e-2, "schedule": "cycle", "kaiming": False},
    # The posterior of 56,000 weights given 1,077 inputs under the reference's prior is the prior, more or less.
    "p-sgld": {"lr": 3e-3, "prior_sigma": 1.0, "temperature": 0.02, "kaiming": False},
    "abnn": QUICK,
    "abnn:paper": {**QUICK, "attachment_lr": 1e-2, "attachment_schedule": "cycle"},
    "abnn:authors": {**QUICK, "attachment_lr": 1e-2, "attachment_schedule": "cycle"},
}


@dataclass(frozen=True)
class Task:
    """Data to train and evaluate on, and how networks are trained there.

    sets      (name, tier, data) to evaluate
    backbone  recipe for :func:`abnn.backbones.build_backbone`
    settings  hyper-parameters by "method" or "method:variant", beside the method's own
    """

    name: str
    train: Labelled
    sets: tuple[tuple[str, str, Labelled], ...]
    backbone: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    sha256: str
    batch: int = 64

    def method(self, name: str, variant: str = "reference", **options: Any) -> Method:
        """A method with the settings for this data, and changes to them."""
        if name not in REGISTRY:
            raise unknown("method", name, REGISTRY)
        settings = self.settings.get(f"{name}:{variant}", self.settings.get(name, {}))
        return make_method(name, variant, **{**settings, **options})

    def loader(self) -> DataLoader:
        return DataLoader(TensorDataset(*self.train), batch_size=self.batch, shuffle=True)

    def evaluate(self, model: Any) -> tuple[SetResult, ...]:
        """What a model says about all sets, without pictures."""
        return tuple(
            evaluate_set(model, DataLoader(TensorDataset(*part), batch_size=256), name, tier, DRAWS, shown=0)
            for name, tier, part in self.sets
        )

    def config(self, method: Method, epochs: int) -> dict[str, Any]:
        """Everything that leads to a result."""
        return {
            "data": {"name": self.name, "sha256": self.sha256, "batch": self.batch},
            "backbone": self.backbone,
            "method": method.to_config(),
            "epochs": epochs,
            "draws": DRAWS,
        }


def load_data(name: str, seed: int = 0, validation: bool = False) -> Task:
    """The task of a name; ``validation``: evaluate on the sets for choosing settings instead of the tests."""
    if name != "digits":
        raise InputError(explain("data", repr(name), "'digits', the embedded example"))
    data = load_digits(seed)
    tests = (
        ("handwritten digits", "id", data.val if validation else data.test),
        ("printed digits", "semi", data.val_semi if validation else data.semi),
        ("patterns" if validation else "photographs", "full", data.val_full if validation else data.full),
    )
    backbone = {"name": "paper-resnet", "classes": 10, "in_channels": 1, "width": 32, "blocks": 3, "stem": "small"}
    return Task(name, data.train, tests, backbone, DIGITS, data.hash())


def run_method(
    task: Task, method: Method, epochs: int = EPOCHS, seed: int = 0, progress: bool = True, **options: Any
) -> tuple[Evaluation, Trained]:
    """Train one method and evaluate it; further options are those of :func:`abnn.methods.train_method`."""
    started = time.perf_counter()
    trained = train_method(method, task.backbone, task.loader(), epochs, seed=seed, progress=progress, **options)
    seconds = {"training": time.perf_counter() - started}
    started = time.perf_counter()
    sets = task.evaluate(trained)
    seconds["evaluation"] = time.perf_counter() - started
    config = task.config(method, epochs)
    return Evaluation(display_name(method), trained.score, sets, None, seed, config, seconds), trained


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
    epochs: int = EPOCHS,
    data: str = "digits",
    validation: bool = False,
    note: Callable[[str], None] | None = None,
) -> list[Path]:
    """Train and evaluate what has no record yet, and return the paths of all records.

    methods  names, or "name:variant"
    posthoc  names of post-hoc scores, evaluated on the network of method "threshold"; None: all that can be computed
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
    say = note or (lambda line: None)
    paths: list[Path] = []

    def record(name: str, seed: int, config: dict[str, Any], run: Callable[[], Evaluation]) -> None:
        path = record_path(output, experiment, name, seed)
        known = _known(path, config)
        if not known:
            write_record(run(), output, experiment, images=False, score_bits=16)
        say(f"seed {seed}: {name}" + (" (recorded before)" if known else ""))
        paths.append(path)

    for seed in seeds:
        task = load_data(data, seed, validation)
        for name, variant in chosen:
            method = task.method(name, variant)
            run = partial(_evaluated, task, method, epochs, seed, progress)
            record(display_name(method), seed, task.config(method, epochs), run)
        threshold = task.method("threshold")
        network = cache(partial(_trained, task, threshold, epochs, seed, progress))
        for name in scores:
            config = {**task.config(threshold, epochs), "posthoc": POSTHOC[name]().settings}
            try:
                record(f"{name} (post-hoc)", seed, config, partial(run_posthoc, task, name, network, epochs, seed))
            except MissingExtraError as error:
                if posthoc is not None:
                    raise
                say(f"seed {seed}: {name} left out: {error}")
    return paths


def _evaluated(task: Task, method: Method, epochs: int, seed: int, progress: bool) -> Evaluation:
    return run_method(task, method, epochs, seed, progress)[0]


def _trained(task: Task, method: Method, epochs: int, seed: int, progress: bool) -> Trained:
    return train_method(method, task.backbone, task.loader(), epochs, seed=seed, progress=progress)


def _split(text: str) -> tuple[str, str]:
    name, _, variant = text.partition(":")
    make_method(name, variant or "reference")  # a wrong name is an error now, not after an hour
    return name, variant or "reference"


def _known(path: Path, config: dict[str, Any]) -> bool:
    """Whether the run has a record; a damaged one counts as none."""
    if not path.exists():
        return False
    try:
        record = read_record(path)
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
