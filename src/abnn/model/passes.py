"""A pass of an attached network with a state of its own: its draws, its views and the features that it notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from abnn.bayes.layers import MeanField
from abnn.bayes.noise import Noise, hold, no_noise
from abnn.errors import InputError, explain
from abnn.model.attached_blocks import PassState
from abnn.model.attachments import ChainLink
from abnn.model.beside import is_possible, join
from abnn.model.calls import logits_of
from abnn.model.inputs import Batch, call, main_input, mask_of, measured_inputs, rows_of
from abnn.model.shadow import shadow, turn_of
from abnn.model.threads import PerThread
from abnn.model.views import spread

if TYPE_CHECKING:
    from abnn.model.network import AttachedNetwork


class Pass:
    """An attached network in eval mode with draws of its own. Each thread needs its own pass.

    network  provides weights and structure; it is not changed
    noise    of the draws; None: one draw with mean weights
    views    which view each draw looks at, see :func:`abnn.model.views.views_of`
    noting   whether features of the first draw are noted
    root     another module tree over the network's blocks, with modules that read features; None: the network's own
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
        own: dict[int, Any] = {id(part.stream): PerThread() for part in root.modules() if isinstance(part, ChainLink)}
        first = network.layers[0]
        state = PassState(first, views, noting, network.comes_along if plain is None else plain)
        shared = network.state
        state.table, state.padding, state.allows_beside = shared.table, shared.padding, shared.allows_beside
        twins = self.twins = shadow(root, {id(shared): state, **own})
        state.layer = twins[id(first)]  # type: ignore[assignment]
        self.net, self.state = twins[id(root)], state
        self.layers: list[MeanField] = [twins[id(layer)] for layer in network.layers]  # type: ignore[misc]
        self.folds_at_input = network.folds_at_input
        self.turn = turn_of(root)
        hold(self.layers, no_noise(network.layers) if noise is None else noise)

    def keep_weights(self) -> None:
        """Compute the weights of the draws once for all calls.

        The network's parameters must not change until the last one.
        """
        for layer in self.layers:
            layer.ready = {}
            for use in range(layer.uses):
                layer.weights(use)

    def __call__(self, x: Batch) -> Tensor:
        """Return the network's output for every draw, [S, B, ...]."""
        with self.turn:
            return run_draws(self.net, self.state, self.folds_at_input, x)[0]

    def take_features(self, wait: bool = True) -> tuple[list[Tensor], Tensor | None]:
        """Return the features that were noted since the last call, at every place, and the input of the last layer.

        wait  whether the current stream waits for them; else what follows must run beside, see :mod:`abnn.model.beside`
        """
        features, last = self.state.features, self.state.last
        assert features is not None
        self.state.features, self.state.last = [], None
        if wait:
            join(features, self.state.beside)
        return features, last


def run_draws(net: torch.nn.Module, state: PassState, folds_at_input: bool, x: Batch) -> tuple[Tensor, Any]:
    """Return the logits of ``net`` for every held draw, [S, B, ...], and its whole output.

    Where the plain network comes along, its logits are the first. The whole output is that of all draws; where the
    network runs twice, that of the plain network.
    """
    state.put_back, mask = None, mask_of(x, state.padding)
    if mask is None:
        state.last_mask = None
        return _run_draws(net, state, folds_at_input, x)
    with state.masked(mask):
        return _run_draws(net, state, folds_at_input, x)


def _run_draws(net: torch.nn.Module, state: PassState, folds_at_input: bool, x: Batch) -> tuple[Tensor, Any]:
    draws, batch = state.groups, x.shape[0] // state.batches
    if state.features is not None and not state.twice.running:
        state.rows = batch
        state.beside = state.allows_beside and is_possible(state.layer.weight_mean.device)
        if state.table is not None:
            state.note_words(main_input(x))
        for _, value, layout in measured_inputs(x):
            state.note(value, layout)
    if folds_at_input and state.plain and not state.views and not state.twice.running:
        with state.twice.begin():
            output = call(net, x)
            state.twice.go_on()
            attached, _ = _run_draws(net, state, True, x)
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
    """Return a network's output with other logits.

    A mapping keeps its type; of any other output, return the logits alone.

    Other values in a mapping that have rows for every draw keep those of the first draw. It is the plain network's,
    where that comes along.
    """
    if not isinstance(output, Mapping):
        return logits
    old, batch = logits_of(output), logits.shape[0]
    assert old is not None

    def first(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[:batch] if value.shape[:1] == old.shape[:1] else value
        return type(value)(map(first, value)) if type(value) in (tuple, list) else value

    values = {name: logits if value is old else first(value) for name, value in output.items() if name != "loss"}
    return cast(Any, type(output))(**{**({} if loss is None else {"loss": loss}), **values})
