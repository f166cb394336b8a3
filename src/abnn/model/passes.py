"""A pass of an attached network that carries its own state: draws, views and what is noted belong to it alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from abnn.bayes.layers import MeanField
from abnn.bayes.noise import Noise, hold, no_noise
from abnn.errors import InputError, explain
from abnn.model.attached_blocks import PassState
from abnn.model.attachments import ChainLink, Stream
from abnn.model.beside import is_possible, join
from abnn.model.blocks import logits_of
from abnn.model.inputs import Batch, Inputs, call, main_input, measured, rows_of
from abnn.model.shadow import shadow
from abnn.model.views import spread

if TYPE_CHECKING:
    from abnn.model.network import AttachedNetwork


class Pass:
    """An attached network in eval mode with draws of its own. From several threads, each has its own pass.

    network  gives weights and structure, and is left alone
    noise    of the draws; None: one draw with mean weights
    views    which view each draw looks at, see :func:`abnn.model.views.views_of`
    noting   whether features of the first of the draws are noted
    root     another tree over the network's blocks, with modules that read on the way; None: the network's own
    plain    whether the network without attachments comes along, as the first of the draws; None: as in predictions
    """

    def __init__(
        self,
        network: AttachedNetwork,
        noise: Noise | None = None,
        views: tuple[int, ...] = (),
        noting: bool = False,
        root: torch.nn.Module | None = None,
        plain: bool | None = None,
    ) -> None:
        network.check_attached()
        root = network.net if root is None else root
        streams = {id(part.stream): Stream() for part in root.modules() if isinstance(part, ChainLink)}
        first = network.layers[0]
        state = PassState(first, views, noting, network.comes_along if plain is None else plain)
        state.table, state.apart = network.state.table, network.state.apart
        twins = self.twins = shadow(root, {id(network.state): state, **streams})
        state.layer = twins[id(first)]  # type: ignore[assignment]
        self.net, self.state = twins[id(root)], state
        self.layers: list[MeanField] = [twins[id(layer)] for layer in network.layers]  # type: ignore[misc]
        self.folds_at_input = network.folds_at_input
        hold(self.layers, no_noise(network.layers) if noise is None else noise)

    def keep_weights(self) -> None:
        """Make the weights of the draws once for all passes; the network's parameters must not change until the last."""
        for layer in self.layers:
            layer.ready = {}
            for use in range(layer.uses):
                layer.weights(use)

    def __call__(self, x: Batch) -> Tensor:
        """Return the network's output for every draw, [S, B, ...]."""
        return run_draws(self.net, self.state, self.folds_at_input, x)[0]

    def take_features(self, wait: bool = True) -> tuple[list[Tensor], Tensor | None]:
        """Return what was noted since the last time: of the input and every block, and what went into the last layer.

        wait  whether what follows waits for the features; else it must run beside, see :mod:`abnn.model.beside`
        """
        features, last = self.state.features, self.state.last
        assert features is not None
        self.state.features, self.state.last = [], None
        if wait:
            join(features, self.state.beside)
        return features, last


def run_draws(net: torch.nn.Module, state: PassState, folds_at_input: bool, x: Batch) -> tuple[Tensor, Any]:
    """Return the logits of ``net`` for every held draw, [S, B, ...], after those of the plain network where it comes along.

    Beside them comes all that ``net`` said: of every draw, or where it ran twice, of the plain network.
    """
    if isinstance(x, Inputs) and x.mask is not None and state.mask is None:
        with state.masked(x.mask):
            return run_draws(net, state, folds_at_input, x)
    draws, batch = state.groups, x.shape[0] // state.batches
    if state.features is not None and not state.twice.running:
        state.rows = batch
        state.beside = state.apart and is_possible(state.layer.weight_mean.device)
        if state.table is not None:
            state.note_words(main_input(x))
        for _, value, layout in measured(x):
            state.note(value, layout)
    if folds_at_input and state.plain and not state.views and not state.twice.running:
        with state.twice.begin():
            output = call(net, x)
            state.twice.go_on()
            attached, _ = run_draws(net, state, True, x)
        plain = logits_of(output)
        assert plain is not None
        return torch.cat([plain[None], attached]), output
    if folds_at_input and draws > 1:
        x = rows_of(x, lambda rows: spread(rows, state.views or (0,) * draws))
    output = call(net, x)
    logits = logits_of(output)
    assert logits is not None
    if logits.shape[0] != draws * batch:
        actual = f"a network with {logits.shape[0]} rows of output for {batch} inputs and {draws} draws"
        raise InputError(explain("model", actual, "one row for each input"))
    return logits.unflatten(0, (draws, batch)), output


def with_logits(output: Any, logits: Tensor, loss: Tensor | None = None) -> Any:
    """Return what a network said with other logits: a dict, or what a transformer returns, stays one; else the logits alone.

    Of everything else in it that has rows for every draw, those of the first are left: the plain network's, where it comes along.
    """
    if not isinstance(output, Mapping):
        return logits
    old, batch = logits_of(output), logits.shape[0]
    assert old is not None

    def first(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[:batch] if value.shape[:1] == old.shape[:1] else value
        return type(value)(map(first, value)) if type(value) in (tuple, list) else value

    said = {name: logits if value is old else first(value) for name, value in output.items() if name != "loss"}
    return cast(Any, type(output))(**{**({} if loss is None else {"loss": loss}), **said})
