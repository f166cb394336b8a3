"""A pass of an attached network that carries its own state: draws, views and what is noted belong to it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from abnn.bayes.layers import MeanField
from abnn.bayes.noise import Noise, hold, no_noise
from abnn.errors import InputError, explain
from abnn.model.attached_blocks import PassState, repeat_rows
from abnn.model.attachments import ChainLink, Stream
from abnn.model.blocks import logits_of
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
    plain    whether the network without attachments comes along, as the first of the draws; None: as the network does it
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
        state = PassState(first, views, noting, network.state.plain if plain is None else plain)
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

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the network's output for every draw, [S, B, ...]."""
        return run_draws(self.net, self.state, self.folds_at_input, x, args, kwargs)

    def take_features(self) -> tuple[list[Tensor], Tensor | None]:
        """Return what was noted since the last time: of the input and every block, and what went into the last layer."""
        features, last = self.state.features, self.state.last
        assert features is not None
        self.state.features, self.state.last = [], None
        return features, last


def run_draws(
    net: torch.nn.Module,
    state: PassState,
    folds_at_input: bool,
    x: Tensor,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Tensor:
    """Return the output of ``net`` for every held draw, [S, B, ...], after that of the plain network where it comes along."""
    draws, batch = state.groups, x.shape[0] // state.batches
    if state.features is not None and not state.twice.running:
        state.rows = batch
        if x.is_floating_point():
            state.note(x, "channels")
    if folds_at_input and state.plain and not state.views and not state.twice.running:
        with state.twice.begin():
            plain = logits_of(net(x, *args, **kwargs))
            state.twice.go_on()
            attached = run_draws(net, state, True, x, args, kwargs)
        assert plain is not None
        return torch.cat([plain[None], attached])
    if folds_at_input and draws > 1:
        x = spread(x, state.views or (0,) * draws)
        further: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        rows = {place for place, each in further if isinstance(each, Tensor) and each.shape[:1] == (batch,)}
        args, kwargs = repeat_rows(
            (x, *args), kwargs, {place + 1 if isinstance(place, int) else place for place in rows}
        )
        args = args[1:]
    logits = logits_of(net(x, *args, **kwargs))
    assert logits is not None
    if logits.shape[0] != draws * batch:
        actual = f"a network with {logits.shape[0]} rows of output for {batch} inputs and {draws} draws"
        raise InputError(explain("model", actual, "one row for each input"))
    return logits.unflatten(0, (draws, batch))
