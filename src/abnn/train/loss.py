"""The loss of one batch: ordinary data, and outliers made from it. The formulas are the task's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import kl_of, with_weights_ready
from abnn.bayes.noise import held_noise, hold, map_noise
from abnn.config import Objective, check_bounds, preset
from abnn.errors import InputError, explain
from abnn.model.calls import evaluating, logits_of
from abnn.model.inputs import Batch, call
from abnn.model.network import AttachedNetwork
from abnn.outliers import PRESET, Outliers, make_outliers, measure_range
from abnn.predict.compiling import is_compiled, with_network
from abnn.train.batches import check_batch, explained_tokens


def loss(
    model: AttachedNetwork,
    x: Any,
    y: Any = None,
    outliers: str | Outliers | Any | None = PRESET,
    *,
    freeze_backbone: bool | None = None,
    value_range: tuple[Any, Any] | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return what one step of :func:`abnn.fit` minimises for this batch, as a scalar for a training loop of your own.

    ``abnn.loss(model, x, y).backward()`` gives gradients to the attachments, ready for any optimiser over
    ``model.attachment_parameters()``. Draws of the weights come from torch's global random state. The draws that the
    model holds, its mode and its flags stay as they are.

    x, y             inputs and labels; a dict of inputs may hold the labels, too
    outliers         as in fit()
    freeze_backbone  True: only attachments get gradients. False: so do parameters of the backbone that require them,
                     and ordinary data passes in the mode that the model is in. None: what the preset says
    value_range      (low, high) of the inputs; outliers stay within it. None: the range of ``outliers`` if its
                     prepare() set one, else that of this batch. Pass one, so that it is the same in all batches
    generator        of the outliers' random numbers; None: torch's global random state
    """
    check_model(model)
    chosen = preset(model.preset)
    goal = chosen.objective
    if not goal.together:
        actual = f"a model with preset {model.preset!r}, which makes several updates for each batch"
        raise InputError(explain("model", actual, "a preset with one loss, such as 'default'", "Use abnn.fit()."))
    check_bounds(value_range)
    freeze = chosen.freeze_backbone if freeze_backbone is None else freeze_backbone
    if y is None and not isinstance(x, Mapping):
        raise InputError(explain("y", None, "labels of the batch", 'Only a dict of inputs may hold them, as "labels".'))
    x, y = check_batch(model, x if y is None and isinstance(x, Mapping) else (x, y))
    chosen_outliers = choose_outliers(outliers, model.preset)
    attachments = [parameter for _, parameter in model.attachment_parameters()]
    losses = Losses(model, goal)
    comes_along = freeze and losses.can_come_along
    with (
        explained_tokens(model, [(x, y)]),
        touching(attachments, model.parameters()) if freeze else contextlib.nullcontext(),
        plain_along(model, False),
    ):
        plain = None if comes_along else losses.plain(x)
        with (
            fresh_draws(model, goal.draws[1]),
            evaluating(model) if freeze else contextlib.nullcontext(),
            plain_along(model, comes_along),
        ):
            data_loss, kl, _, plain = losses.data_loss(x, y, True, plain)
        check_learns(model, data_loss)
        total = data_loss + kl
        if chosen_outliers is not None:
            generate = chosen_outliers.prepared_for(model, value_range, partial(measure_range, [x]))
            batch = generate(x, y, generator)
            with fresh_draws(model, goal.draws[2]), evaluating(model):
                outlier_loss, outlier_kl = losses.outlier_loss(batch.x, batch.y, batch.severity, generator, plain)
            total = total + goal.alpha * (outlier_loss + outlier_kl)
    model.state.put_back = freeze
    return total


class Losses:
    """The losses of ordinary data and of outliers, with their KL terms, for the draws that the model holds.

    They are compiled where the network is.

    autocast        makes the context in which the network runs
    can_come_along  whether a pass over ordinary data can give the backbone's outputs as well, see :func:`plain_along`
    """

    def __init__(
        self,
        model: AttachedNetwork,
        objective: Objective,
        autocast: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.model, self.objective, self.autocast = model, objective, autocast
        self.compiled = is_compiled(model.net)
        self.can_come_along = bool(model.state.plain and objective.distil)
        self.data_loss = with_network(self._data_loss, model.net, repr(objective))
        self.outlier_loss = with_network(self._outlier_loss, model.net, repr(objective))

    @torch.no_grad()
    def plain(self, x: Batch) -> Tensor | None:
        """Return the backbone's outputs in eval mode; None where the objective does not need them."""
        if not self.objective.distil:
            return None
        backbone = self.model.backbone
        with self.autocast(), evaluating(backbone) if backbone.training else contextlib.nullcontext():
            return logits_of(call(backbone, x))

    def _data_loss(
        self, x: Batch, y: Tensor, with_kl: bool, plain: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the loss, the weighted KL, the mean of what the task measures, and the backbone's outputs.

        What a task measures is, for classes, the share of inputs that are right. The backbone's outputs are ``plain``,
        or those that came along in the pass.
        """
        logits = self._logits(x)
        if self.model.state.plain:
            plain, logits = logits[0].detach(), logits[1:]
        task = self.model.task
        right = task.right(logits.detach(), y).mean()
        return task.id_loss(self.objective, logits, y, plain), self._kl(x, with_kl), right, plain

    def _outlier_loss(
        self, x: Batch, y: Tensor, severity: Tensor, generator: torch.Generator | None, plain: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the weighted KL."""
        logits = self._logits(x)
        loss = self.model.task.outlier_loss(self.objective, logits, y, severity, generator, plain)
        return loss, self._kl(x, self.objective.outlier_kl)

    def _logits(self, x: Batch) -> Tensor:
        # A compiler samples weights where they are used. Without one, fewer and larger operations sample them first.
        ready = contextlib.nullcontext() if self.compiled else with_weights_ready(self.model.layers)
        with self.autocast(), ready:
            logits = self.model.draw_logits(x)
        return logits.float()

    def _kl(self, x: Batch, with_kl: bool) -> Tensor:
        """Return the weighted KL term, or 0."""
        if not with_kl:
            return x.new_zeros((), dtype=torch.float32)
        return self.objective.kl_factor(len(x)) * kl_of(self.model.layers, self.objective.sampled_kl)


def check_model(model: Any) -> None:
    """Raise an error for a model without attachments, or with parameters that cannot learn."""
    if not isinstance(model, AttachedNetwork):
        parts = model.named_modules() if isinstance(model, nn.Module) else ()
        inside = next((name for name, each in parts if isinstance(each, AttachedNetwork)), None)
        fix = (
            "Attach first." if inside is None else f"Pass the attached network itself, which is inside: model.{inside}."
        )
        raise InputError(explain("model", type(model).__name__, "what abnn.attach() returned", fix))
    if any(parameter.is_inference() for parameter in model.parameters()):
        actual = "parameters made under torch.inference_mode(), which cannot learn"
        raise InputError(explain("model", actual, "ordinary ones", "Build the network and attach outside of it."))


def check_learns(model: AttachedNetwork, data_loss: Tensor) -> None:
    """Raise an error where no gradient of the loss reaches the attachments."""
    if torch.is_grad_enabled() and not data_loss.requires_grad:
        actual = f"a network that lets no gradient through to its attachments, at {', '.join(model.block_names)}"
        fix = (
            "Take torch.no_grad(), inference_mode(), detach() and reentrant checkpointing out of what comes after them, "
            "or attach after it with at=... Without either, fit with epochs=0 learns the score alone."
        )
        raise InputError(explain("model", actual, "one whose output depends on them, with gradients", fix))


def choose_outliers(outliers: Any, name: str) -> Outliers | None:
    """Return the outliers that a caller asked for, or those of the named preset; None for none."""
    if isinstance(outliers, str) and outliers == PRESET:
        chosen = preset(name)
        return make_outliers(chosen.outliers, **chosen.outlier_options)
    return make_outliers(outliers)


@contextlib.contextmanager
def plain_along(model: AttachedNetwork, comes_along: bool) -> Iterator[None]:
    """Inside, passes of the model also run the plain network, as the row before its draws; or they do not.

    Where it comes along, both share what comes before the first attachment.
    """
    before = model.state.plain
    model.state.plain = comes_along
    try:
        yield
    finally:
        model.state.plain = before


@contextlib.contextmanager
def fresh_draws(model: AttachedNetwork, draws: int) -> Iterator[None]:
    """Inside, the model holds this many new draws, in memory of their own: a backward pass may need them later."""
    noise, seed = held_noise(model.layers), model.seed
    hold(model.layers, map_noise(noise, torch.empty_like))
    try:
        model.resample(draws)
        yield
    finally:
        hold(model.layers, noise)
        model.seed = seed


@contextlib.contextmanager
def touching(learning: Iterable[nn.Parameter], all_parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Inside, gradients reach exactly the parameters ``learning``."""
    flags = [(parameter, parameter.requires_grad) for parameter in all_parameters]
    chosen = {id(parameter) for parameter in learning}
    try:
        for parameter, _ in flags:
            parameter.requires_grad_(id(parameter) in chosen)
        yield
    finally:
        for parameter, flag in flags:
            parameter.requires_grad_(flag)
