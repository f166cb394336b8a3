"""Train any method through the one loop."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from abnn.baselines._trained import Backbone, Trained, maker
from abnn.baselines.base import Method, Run, full_outliers, make_method
from abnn.errors import InputError, explain, whole_seed
from abnn.model.blocks import evaluating, logits_of, summary
from abnn.outliers import PRESET, Outliers, make_outliers
from abnn.predict.compiling import compiled
from abnn.store.folder import fingerprint
from abnn.train.batches import Batches, generators_of
from abnn.train.config import FitConfig
from abnn.train.lanes import to_end, together
from abnn.train.loop import make_fabric, training
from abnn.train.randomness import number, preserved_random_state


def train_method(
    method: str | Method,
    backbone: Backbone,
    loader: Iterable[Any],
    epochs: int = 40,
    *,
    classes: int | None = None,
    outliers: str | Outliers | Any | None = PRESET,
    value_range: tuple[Any, Any] | None = None,
    seed: int = 0,
    precision: str = "32-true",
    compile: bool = False,
    accelerator: str = "auto",
    devices: int | str = 1,
    num_nodes: int = 1,
    checkpoint: str | Path | None = None,
    checkpoint_every: int | None = None,
    log: Sequence[str] | str = (),
    log_dir: str | Path = "runs",
    progress: bool = True,
) -> Trained:
    """Train a method from the beginning and return what predicts.

    method       a name, or what :func:`abnn.baselines.make_method` returned
    backbone     a name such as "paper-resnet", a dict with a name and options, a function that makes a network, or a
                 network, which is copied and not changed
    loader       yields (x, y): inputs, and labels as class numbers
    epochs       over all stages together
    classes      for a backbone by name
    outliers     for methods that use them: a name, a generator, or a data set of real ones; "preset": the method's own
    value_range  (low, high) of the inputs; None: that of ``outliers`` if its prepare() set one, else measured from the first
                 batches
    seed         of initial weights, order of the data, outliers and draws
    checkpoint   a file; a run that was killed goes on from there and ends as if it had not been. Methods with several
                 stages write one file each, with the stage in its name

    precision, compile, accelerator, devices, log and log_dir are those of :func:`abnn.train.fit`.
    """
    settings = (classes, outliers, value_range, seed, precision, compile, accelerator, devices, num_nodes)
    watching = (checkpoint, checkpoint_every, log, log_dir, progress)
    with preserved_random_state(*generators_of(loader)):
        return to_end(_training(method, backbone, loader, epochs, *settings, *watching))


def train_seeds(
    method: str | Method,
    backbone: Backbone | Sequence[nn.Module],
    loader: Iterable[Any],
    epochs: int = 40,
    *,
    seeds: Sequence[int] = range(5),
    classes: int | None = None,
    outliers: str | Outliers | Any | None = PRESET,
    value_range: tuple[Any, Any] | None = None,
    precision: str = "32-true",
    compile: bool = False,
    accelerator: str = "auto",
    checkpoint: str | Path | None = None,
    progress: bool = True,
) -> list[Trained]:
    """What :func:`train_method` gives for each seed, from one process; on CUDA all are trained at once.

    backbone    as there, or a list with one network for each seed
    checkpoint  a file; every seed writes its own, with the seed in its name

    Everything else is as there.
    """
    if not seeds:
        raise InputError(explain("seeds", repr(seeds), "one seed or more"))
    backbones = list(backbone) if isinstance(backbone, list | tuple) else [backbone] * len(seeds)
    if len(backbones) != len(seeds):
        raise InputError(explain("backbone", f"{len(backbones)} networks", f"one for each of {len(seeds)} seeds"))

    def run(seed: int, start: Any, shown: bool) -> Generator[None, None, Trained]:
        file = None if checkpoint is None else Path(checkpoint).with_stem(f"{Path(checkpoint).stem}-seed{seed}")
        settings = (classes, outliers, value_range, seed, precision, compile, accelerator, 1, 1)
        return _training(method, start, loader, epochs, *settings, file, None, (), "runs", shown)

    device = make_fabric(precision, accelerator, 1, 1).device
    runs = [run(seed, start, progress and seed == seeds[0]) for seed, start in zip(seeds, backbones)]
    with preserved_random_state(*generators_of(loader)):
        return together(runs, device)


def _training(
    method: str | Method,
    backbone: Backbone,
    loader: Iterable[Any],
    epochs: int,
    classes: int | None,
    outliers: Any,
    value_range: tuple[Any, Any] | None,
    seed: int,
    precision: str,
    compile: bool,
    accelerator: str,
    devices: int | str,
    num_nodes: int,
    checkpoint: str | Path | None,
    checkpoint_every: int | None,
    log: Sequence[str] | str,
    log_dir: str | Path,
    progress: bool,
) -> Generator[None, None, Trained]:
    """:func:`train_method` in pieces, see :func:`abnn.train.loop.training`."""
    chosen = make_method(method) if isinstance(method, str) else method
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
        raise InputError(explain("epochs", repr(epochs), "a whole number of at least 1"))
    seed = whole_seed(seed)
    fabric = make_fabric(precision, accelerator, devices, num_nodes)
    example = first_inputs(loader)
    torch.manual_seed(number("init", seed))
    make = maker(backbone, example, classes, chosen)
    known: dict[str, Any] = {}

    def make_and_note() -> nn.Module:
        made = make()
        known.setdefault("classes", _classes(made, example))
        known.setdefault("recipe", getattr(made, "abnn_recipe", None))
        return made

    network = chosen.build(make_and_note, example)
    trained = Trained(chosen, network, example, known["classes"], known["recipe"])
    fabric.to_device(network)
    batches = Batches(loader, trained, fabric, seed)
    outlier_maker = choose_outliers(chosen, outliers, example)
    if outlier_maker is not None:
        layout = outlier_maker.layout_for(trained)
        outlier_maker = outlier_maker.with_range(value_range, lambda: batches.value_range(layout), layout)
    run = Run(network, fabric, batches, outlier_maker, epochs, _inputs(loader))
    settings: dict[str, Any] = {
        "method": chosen.to_config(),
        "outliers": None if outlier_maker is None else outlier_maker.to_config(),
        "precision": precision,
        "network": [[name, list(value.shape)] for name, value in network.state_dict().items()],
    }
    if checkpoint is not None and outlier_maker is not None and (digests := outlier_maker.data_digests()):
        settings["outlier_data"] = digests
    stages = [stage for stage in chosen.stages(run) if stage.epochs > 0]
    with compiled(chosen.compilable(network), compile):
        for stage in stages:
            trained.history[stage.name] = yield from training(
                stage.make(),
                batches,
                fabric,
                stage.epochs,
                {
                    **settings,
                    "stage": stage.name,
                    "total_epochs": epochs,
                    "start": None if checkpoint is None else fingerprint(network),
                },
                stage.schedule,
                seed,
                _stage_file(checkpoint, stage.name, len(stages)),
                progress,
                FitConfig(checkpoint_every=checkpoint_every, log=log, log_dir=log_dir),
            )
    chosen.finish(run)
    network.eval()
    return trained


def choose_outliers(method: Method, outliers: Any, example: Tensor) -> Outliers | None:
    """The generator for a method: what the caller gave, or what its hyper-parameters say."""
    given = getattr(method, "outliers", None) if isinstance(outliers, str) and outliers == PRESET else outliers
    if method.uses_outliers == "never":
        if given is not None:
            fix = "Leave it out, or choose a method that learns from outliers, such as 'oe' or 'abnn'."
            raise InputError(explain("outliers", repr(given), f"None for method {method.name!r}", fix))
        return None
    if given is None:
        if method.uses_outliers == "must":
            fix = "Leave it out for the method's own, or use method 'threshold'."
            raise InputError(explain("outliers", "None", f"outliers, without which {method.name!r} is nothing", fix))
        return None
    return make_outliers(full_outliers(example) if isinstance(given, str) and given == "full" else given)


def first_inputs(loader: Iterable[Any]) -> Tensor:
    """One input of the loader, to probe networks with."""
    try:
        x = next(iter(loader))[0]
    except (StopIteration, TypeError, IndexError, KeyError):
        x = None
    if not isinstance(x, Tensor) or x.ndim < 2 or len(x) == 0:
        accepted = "something that yields (x, y) batches every time it is iterated"
        fix = "Use torch.utils.data.DataLoader, or a list of batches."
        raise InputError(explain("loader", f"{type(loader).__name__} without a batch of inputs", accepted, fix))
    return x[:1]


def _classes(backbone: nn.Module, example: Tensor) -> int:
    device = next((parameter.device for parameter in backbone.parameters()), example.device)
    try:
        with torch.no_grad(), evaluating(backbone):
            logits = logits_of(backbone(example.to(device)))
    except Exception as error:
        given = f"inputs of shape {tuple(example.shape[1:])}, on which the backbone fails: {summary(error)}"
        fix = "Check that backbone(x) works for x, _ = next(iter(loader))."
        raise InputError(explain("loader", given, "batches that the backbone takes", fix)) from error
    if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
        given = "no tensor" if logits is None else f"shape {tuple(logits.shape)}"
        raise InputError(explain("backbone", f"an output of {given}", "one logit for each of two or more classes"))
    return logits.shape[1]


def _inputs(loader: Any) -> int:
    """How many training inputs there are."""
    if isinstance(loader, DataLoader) and hasattr(loader.dataset, "__len__"):
        return len(loader.dataset)
    return sum(len(y) for _, y in loader)


def _stage_file(checkpoint: str | Path | None, stage: str, stages: int) -> Path | None:
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path if stages == 1 else path.with_name(f"{path.stem}-{stage}{path.suffix}")
