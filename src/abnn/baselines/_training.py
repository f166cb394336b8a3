"""Train any method through the one loop."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from abnn.attached import Attached
from abnn.baselines._trained import Backbone, Trained, backbone_maker
from abnn.baselines.base import Method, Run, make_method
from abnn.config import FitConfig
from abnn.errors import InputError, at_least_one, explain, whole_seed
from abnn.model.calls import evaluating, logits_of, summary
from abnn.outliers import PRESET, Outliers, make_outliers
from abnn.outliers.mixtures import CONTENT
from abnn.predict.compiling import compiled
from abnn.predict.plain import device_of
from abnn.store.folder import fingerprint
from abnn.train.batches import Batches, generators_of
from abnn.train.loop import make_fabric, to_end, training
from abnn.train.randomness import number, preserved_random_state


@dataclass(frozen=True)
class TrainConfig:
    """How a training runs: data range, machine, checkpoints and logs, as in :class:`abnn.FitConfig`.

    checkpoint  a file; a run that was killed goes on from there and ends as if it had not been. Methods with several stages
                write one file each, with the stage in its name
    """

    value_range: tuple[Any, Any] | None = None
    precision: str = "32-true"
    compile: bool = False
    accelerator: str = "auto"
    devices: int | str = 1
    num_nodes: int = 1
    checkpoint: str | Path | None = None
    checkpoint_every: int | None = None
    log: Sequence[str] | str = ()
    log_dir: str | Path = "runs"


def train_method(
    method: str | Method,
    backbone: Backbone,
    loader: Iterable[Any],
    epochs: int = 40,
    *,
    classes: int | None = None,
    outliers: str | Outliers | Any | None = PRESET,
    seed: int = 0,
    progress: bool = True,
    config: TrainConfig | None = None,
) -> Trained:
    """Train a method from the beginning and return what predicts.

    method    a name, or what :func:`abnn.baselines.make_method` returned
    backbone  a name such as "paper-resnet", a dict with a name and options, a function that makes a network, or a
              network, which is copied and not changed
    loader    yields (x, y): inputs, and labels as class numbers
    epochs    over all stages together
    classes   for a backbone by name
    outliers  for methods that use them: a name, a generator, or a data set of real ones; "preset": the method's own
    seed      of initial weights, order of the data, outliers and draws
    progress  whether to show a bar
    config    how the training runs
    """
    steps = training_steps(method, backbone, loader, epochs, classes, outliers, seed, progress, config or TrainConfig())
    with preserved_random_state(*generators_of(loader)):
        return to_end(steps)


def training_steps(
    method: str | Method,
    backbone: Backbone,
    loader: Iterable[Any],
    epochs: int,
    classes: int | None,
    outliers: Any,
    seed: int,
    progress: bool,
    config: TrainConfig,
) -> Generator[None, None, Trained]:
    """:func:`train_method` in pieces, see :func:`abnn.train.loop.training`."""
    method = make_method(method) if isinstance(method, str) else method
    epochs, seed = at_least_one("epochs", epochs), whole_seed(seed)
    fabric = make_fabric(config.precision, config.accelerator, config.devices, config.num_nodes)
    example = first_inputs(loader)
    torch.manual_seed(number("init", seed))
    trained = _build(method, backbone, example, classes)
    network = trained.network
    fabric.to_device(network)
    whole = loader
    loader, held_out = method.hold_out(loader, seed)
    batches = Batches(loader, trained, fabric, seed)
    maker = choose_outliers(method, outliers, example)
    if maker is not None:
        maker = maker.prepared_for(trained, config.value_range, batches.value_range)
    sized = isinstance(whole, DataLoader) and hasattr(whole.dataset, "__len__")
    size = len(whole.dataset) if sized else sum(len(y) for _, y in whole)  # type: ignore[attr-defined]
    run = Run(network, fabric, batches, maker, epochs, size, held_out)
    checkpoint = None if config.checkpoint is None else Path(config.checkpoint)
    identity: dict[str, Any] = {
        "method": method.to_config(),
        "outliers": None if maker is None else maker.to_config(),
        "precision": config.precision,
        "network": [[name, list(value.shape)] for name, value in network.state_dict().items()],
        "total_epochs": epochs,
    }
    if checkpoint is not None and maker is not None and (digests := maker.data_digests()):
        identity["outlier_data"] = digests
    stages = [stage for stage in method.stages(run) if stage.epochs > 0]
    logging = FitConfig(checkpoint_every=config.checkpoint_every, log=config.log, log_dir=config.log_dir)
    with compiled(method.compilable(network), config.compile):
        for stage in stages:
            steps, file, start = stage.make(), checkpoint, None
            if file is not None:
                start = fingerprint(network)
                file = file.with_name(f"{file.stem}-{stage.name}{file.suffix}") if len(stages) > 1 else file
            settings = {**identity, "stage": stage.name, "start": start}
            trained.history[stage.name] = yield from training(
                steps, batches, fabric, stage.epochs, settings, stage.schedule, seed, file, progress, logging
            )
    method.finish(run)
    network.eval()
    return trained


def _build(method: Method, backbone: Backbone, example: Tensor, classes: int | None) -> Trained:
    """Return the method with its network, not yet trained."""
    make = backbone_maker(backbone, example, classes, method)
    first: list[tuple[int, type, dict[str, Any] | None]] = []

    def make_and_note() -> nn.Module:
        network = make()
        if not first:
            first.append((*_probe(network, example), getattr(network, "abnn_recipe", None)))
        return network

    network = method.build(make_and_note, example)
    classes, output, recipe = first[0]
    if output is not Tensor and not isinstance(network, Attached):
        actual = f"one that returns {output.__name__} for method {method.name!r}"
        fix = "Wrap it in a module that returns its logits alone."
        raise InputError(explain("backbone", actual, "a network that returns a tensor of logits", fix))
    return Trained(method, network, example, classes, recipe)


def choose_outliers(method: Method, outliers: Any, example: Tensor) -> Outliers | None:
    """Return the generator for a method: what the caller gave, or what its hyper-parameters say."""
    choice = getattr(method, "outliers", None) if isinstance(outliers, str) and outliers == PRESET else outliers
    if choice is None and method.uses_outliers == "must":
        fix = "Leave it out for the method's own, or use method 'threshold'."
        raise InputError(explain("outliers", "None", f"outliers, without which {method.name!r} is nothing", fix))
    if choice is not None and method.uses_outliers == "never":
        fix = "Leave it out, or choose a method that learns from outliers, such as 'oe' or 'abnn'."
        raise InputError(explain("outliers", repr(choice), f"None for method {method.name!r}", fix))
    if isinstance(choice, str) and choice == "full":  # nothing in them supports a label
        values = "mixed" if example.ndim > 2 else "tabular"
        choice = {"name": values if example.is_floating_point() else "tokens", "severity": [1.0, 1.0]}
        choice |= {"parts": list(CONTENT)} if choice["name"] == "mixed" else {}
    return None if choice is None else make_outliers(choice)


def first_inputs(loader: Iterable[Any]) -> Tensor:
    """Return one input of the loader, to probe networks with."""
    try:
        x = next(iter(loader))[0]
    except (StopIteration, TypeError, IndexError, KeyError):
        x = None
    if not isinstance(x, Tensor) or x.ndim < 2 or len(x) == 0:
        accepted = "something that yields (x, y) batches every time it is iterated"
        fix = "Use torch.utils.data.DataLoader, or a list of batches."
        raise InputError(explain("loader", f"{type(loader).__name__} without a batch of inputs", accepted, fix))
    return x[:1]


def _probe(backbone: nn.Module, example: Tensor) -> tuple[int, type]:
    """Return the number of classes, and the type of the backbone's output."""
    try:
        with torch.no_grad(), evaluating(backbone):
            whole = backbone(example.to(device_of(backbone, example.device)))
            logits = logits_of(whole)
    except Exception as error:
        refused = f"inputs of shape {tuple(example.shape[1:])}, on which the backbone fails: {summary(error)}"
        fix = "Check that backbone(x) works for x, _ = next(iter(loader))."
        raise InputError(explain("loader", refused, "batches that the backbone takes", fix)) from error
    if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
        output = "no tensor" if logits is None else f"shape {tuple(logits.shape)}"
        raise InputError(explain("backbone", f"an output of {output}", "one logit for each of two or more classes"))
    return logits.shape[1], Tensor if isinstance(whole, Tensor) else type(whole)
