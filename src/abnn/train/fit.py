"""Fit attachments, and on request the backbone with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from abnn.bayes.noise import held_noise, hold, map_noise
from abnn.config import DEFAULTS, FitConfig, Objective, check_rate, preset
from abnn.errors import InputError, explain, not_negative, whole_seed
from abnn.files import check_writable
from abnn.model.network import AttachedNetwork
from abnn.outliers import PRESET, Outliers
from abnn.predict.compiling import compiled
from abnn.tensors import tensor_digest
from abnn.train.batches import Batches, explained_tokens, generators_of
from abnn.train.combine import learn_score
from abnn.train.hold_out import hold_out, warn_about
from abnn.train.knowledge import recall, warn_if_lost
from abnn.train.loop import make_fabric, to_end, training
from abnn.train.loss import check_model, choose_outliers
from abnn.train.optimizers import make_optimizer, name_of
from abnn.train.randomness import preserved_random_state
from abnn.train.steps import Steps
from abnn.train.trainable import History
from abnn.train.watch import progress_bar

EPOCHS, STEPS, MOST_EPOCHS = 5, 300, 40
"""How long a fit is by default: this many epochs, or more until it has so many steps, but at most the last number."""


def fit(
    model: AttachedNetwork,
    loader: Iterable[Any],
    outliers: str | Outliers | Any | None = PRESET,
    epochs: int | None = None,
    lr: float | None = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool = True,
    config: FitConfig = DEFAULTS,
) -> History:
    """Fit the attachments of ``model`` to ordinary data plus made-up outliers; return the losses of every epoch.

    Random states, the draws that the model holds and gradient flags are the same before and after. Afterwards the model
    is in eval mode, and so is its backbone until :func:`abnn.detach`. After an error, modes are as before.

    loader      yields (x, y): inputs as the model was attached with, labels as class numbers
    outliers    a name (see abnn.outliers), a generator, a data set of real outliers, or None for none; "preset": what
                the model's preset says
    epochs      None: 5, or as many as 300 steps take, at most 40. 0: nothing is trained; the closed form and the score
                are learnt from one pass, in seconds
    lr          learning rate of the attachments; None: the preset's
    checkpoint  a file, written after every epoch. If it exists, the run goes on from there and ends as if it had not
                been interrupted; see :mod:`abnn.train.loop` about loaders that keep their workers
    config      everything else, see :class:`abnn.FitConfig`
    """
    check_model(model)
    check_rate("lr", lr)
    if epochs != 0 and model.weight_dtype == torch.float16:
        actual = "a network in float16, in which steps of attachments are lost to rounding"
        fix = "Attach to network.float(), or fit with epochs=0."
        raise InputError(explain("model", actual, "one in float32 or bfloat16, or epochs=0", fix))
    seed = whole_seed(seed)
    if not isinstance(config, FitConfig):
        raise InputError(explain("config", repr(config), "an abnn.FitConfig", "abnn.FitConfig(compile=True), say."))
    if checkpoint is not None:
        check_writable("checkpoint", Path(checkpoint))  # before hours of work, not after
    chosen = preset(model.preset)
    lr = chosen.lr if lr is None else lr
    backbone_lr = chosen.backbone_lr if config.backbone_lr is None else config.backbone_lr
    goal = config.objective or chosen.objective
    freeze = chosen.freeze_backbone if config.freeze_backbone is None else config.freeze_backbone
    if goal.outliers_update == "all" and freeze:
        raise InputError(explain("freeze_backbone", True, "False with outliers_update='all'"))
    maker = choose_outliers(outliers, model.preset)
    fabric = make_fabric(config.precision, config.accelerator, config.devices, config.num_nodes)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        preserved_random_state(*generators_of(loader)),
        _preserved(model),
        explained_tokens(model, loader),
        ExitStack() as stack,
    ):
        fabric.to_device(model)
        held_out = None
        if model.combined is not None and isinstance(loader, Iterable):
            warn_about(loader, config.hold_out)
            loader, held_out = hold_out(loader, config.hold_out, seed)
        batches = Batches(loader, model, fabric, seed)
        epochs = _choose_epochs(epochs, batches.length)
        if model.task.spread is not None:
            model.task.measure_targets(batches.targets())
        if maker is not None:
            maker = maker.prepared_for(model, config.value_range, batches.value_range)
        right_before = None if freeze else recall(model, batches.once())
        stack.enter_context(compiled([model.net], config.compile))
        optimizers = {
            "attachments": make_optimizer(config.optimizer, (p for _, p in model.attachment_parameters()), lr)
        }
        if not freeze:
            optimizers["backbone"] = make_optimizer(config.optimizer, model.learning_backbone_parameters(), backbone_lr)
        settings: dict[str, Any] = {}
        if checkpoint is not None:
            settings = {"lr": lr, "backbone_lr": backbone_lr, **_identity(model, goal, maker, freeze, config)}
        steps = Steps(model, goal, maker, fabric, optimizers)
        model.forget_score()
        schedule = chosen.schedule if config.schedule is None else config.schedule
        history = History()
        if epochs:
            run = training(steps, batches, fabric, epochs, settings, schedule, seed, checkpoint, progress, config)
            history = to_end(run, None if batches.length is None else epochs * batches.length)
        stack.close()  # compiled for training only
        model.eval()
        with progress_bar(disable=not progress or model.combined is None, transient=True) as bar:
            bar.add_task("learning the score", total=None, status="")
            learn_score(model, batches.once, held_out, maker, fabric, seed)
        warn_if_lost(model, batches.once(), right_before)
        model.learnt_from = batches.some_inputs()
    model.eval()
    return history


def _choose_epochs(epochs: int | None, length: int | None) -> int:
    if epochs is not None:
        return not_negative("epochs", epochs, ", or None")
    return EPOCHS if not length else min(MOST_EPOCHS, max(EPOCHS, -(-STEPS // length)))


def _identity(
    model: AttachedNetwork, goal: Objective, maker: Outliers | None, freeze: bool, config: FitConfig
) -> dict[str, Any]:
    """Return what tells this run from others, so that it never goes on from another run's checkpoint."""
    digests = [] if maker is None else maker.data_digests()
    return {
        "objective": goal.to_dict(),
        "outliers": maker.to_config() if maker is not None else None,
        **({"outlier_data": digests} if digests else {}),
        "freeze_backbone": freeze,
        "precision": config.precision,
        "hold_out": None if model.combined is None else config.hold_out,
        "at": model.block_names,
        "kind": model.spec.kind,
        "optimizer": name_of(config.optimizer),
        "attachments": [[name, list(value.shape)] for name, value in model.attachment_parameters()],
        # A backbone that learns along has other weights when an interrupted run goes on with the same model.
        "backbone": tensor_digest(model.backbone.state_dict()) if freeze else None,
    }


@contextmanager
def _preserved(model: AttachedNetwork) -> Iterator[None]:
    """Inside, flags, modes and draws may change; afterwards they are as before, with draws on the model's device."""
    flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    modes = [(module, module.training) for module in model.modules()]
    noise, seed = map_noise(held_noise(model.layers), torch.clone), model.seed
    try:
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
            parameter.grad = None
        for module, mode in modes:
            module.training = mode
        hold(model.layers, map_noise(noise, lambda part: part.to(model.device)))
        model.seed = seed
