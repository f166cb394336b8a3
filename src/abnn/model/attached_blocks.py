"""Modules that take a block's place: the block alone, the block with its attachment, or a Bayesian block instead."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import MeanField, bayesian_layers
from abnn.errors import InputError, explain
from abnn.model.attachments import Attachment
from abnn.model.beside import beside
from abnn.model.blocks import Block
from abnn.model.bounded import Bounded
from abnn.model.calls import first_argument, first_tensor, with_items
from abnn.model.features import meaning, note
from abnn.model.graft import StandIn
from abnn.model.threads import PerThread
from abnn.model.views import batches_in, spread


class PassState:
    """What the blocks of a network share in a pass.

    The network has one; each :class:`abnn.model.passes.Pass` has its own.

    layer          any Bayesian layer of the network; the number of its held draws is that of the pass
    plain          whether the network without attachments comes along, as the first of the draws. A training step may
                   set it for passes of the network itself
    batches        number of views of the inputs that come in, one batch after the other
    views          which view each draw looks at, the plain network's first; empty: all look at the image as it is
    twice          memory of a network that runs twice, without and with attachments, see :class:`Twice`
    rows           number of inputs; set where features are noted
    table          embeddings of the input tokens; tokens are noted with their meaning. None: inputs are no tokens
    padding        the token that is padding where no mask says so; None: there is none
    mask           true where a token of the inputs is no padding, [B, L]; None: there is no mask
    last_mask      that of the last pass with gradients: blocks under checkpointing run once more in its backward pass
    put_back       None: blocks may run. Else :func:`abnn.loss` has put back the draws of its passes, so attachments may
                   not run again in its backward pass; True: nor other blocks, since which parameters learn is put back
    features       features of the inputs and the blocks, of the first draw; None: nothing is noted
    last           input of the last linear layer, of the first draw
    allows_beside  whether features may be noted on a second stream, see :mod:`abnn.model.beside`
    beside         whether this pass does so; decided when it begins
    reads          each tensor whose features were noted, and its version then; None, except in ``changes_outputs``
    """

    def __init__(
        self, layer: MeanField, views: tuple[int, ...] = (), noting: bool = False, plain: bool = False
    ) -> None:
        self.layer, self.views, self.batches, self.plain = layer, views, batches_in(views), plain
        self.rows = 0
        self.table: nn.Embedding | None = None
        self.padding: int | None = None
        self.twice = Twice()
        self.features: list[Tensor] | None = [] if noting else None
        self.last: Tensor | None = None
        self.allows_beside = self.beside = False
        self.reads: list[tuple[Tensor, int | None]] | None = None
        self.last_mask: Tensor | None = None
        self.put_back: bool | None = None
        self._mask: PerThread[Tensor] = PerThread()

    @property
    def mask(self) -> Tensor | None:
        mask = self._mask.get()
        return self.last_mask if mask is None else mask

    @contextlib.contextmanager
    def masked(self, mask: Tensor) -> Iterator[None]:
        """Inside, ``mask`` is the mask of the inputs, for this thread."""
        self._mask.put(mask)
        if torch.is_grad_enabled():
            self.last_mask = mask
        try:
            yield
        finally:
            self._mask.clear()

    def check_runs(self, is_attached: bool) -> None:
        """Raise an error where a block runs once more and what its pass has set is gone."""
        if self.put_back or (self.put_back is not None and is_attached):
            actual = "a network that computes blocks once more in the backward pass of abnn.loss(), as in checkpointing"
            fix = (
                "Switch checkpointing off for blocks from the first attachment on, with gradient_checkpointing_disable() "
                "in transformers, or use abnn.fit()."
            )
            raise InputError(explain("model", actual, "one whose blocks run once in each pass", fix))

    @property
    def groups(self) -> int:
        """The number of rows that each input has after the first attachment."""
        return self.layer.draws + (self.plain and not self.twice.running)

    def note(self, tensor: Tensor, layout: str) -> None:
        """Add the features of a tensor. Nothing happens in passes that note nothing, and in the second run of two."""
        if self.features is not None and self.twice.outputs is None:
            if self.reads is not None:
                self.reads.append((tensor, None if tensor.is_inference() else tensor._version))
            with beside(tensor.device, self.beside, tensor, self.mask):
                self.features.append(note(tensor[: self.rows], layout, self.mask))

    def note_words(self, tokens: Tensor) -> None:
        """Add two features: tokens, [B, L], with -1 for padding, and the direction of their mean embedding, [B, E]."""
        if self.table is not None and self.features is not None and self.twice.outputs is None:
            with beside(tokens.device, self.beside, tokens, self.mask):
                words = tokens[: self.rows].long()
                if self.table.padding_idx is not None:
                    words = words.masked_fill(words == self.table.padding_idx, -1)
                words = words if self.mask is None else words.masked_fill(~self.mask, -1)
                self.features += [words, meaning(words, self.table.weight)]


class Twice:
    """The memory of a pass that runs the network twice. Each thread has its own.

    A network may use the number of its inputs anywhere. Then a block cannot add rows half-way, so the network runs once
    without attachments and once with them. In the first run, blocks up to the first attachment store their outputs; in
    the second run they return these without computing them.
    """

    def __init__(self) -> None:
        self._outputs: PerThread[dict[int, Any]] = PerThread()
        self._is_second: PerThread[bool] = PerThread()

    @property
    def running(self) -> bool:
        """Whether this thread is between the begin and the end of two runs."""
        return self._outputs.get() is not None

    @property
    def outputs(self) -> dict[int, Any] | None:
        """Outputs of the first run by block, during the second run; else None."""
        return self._outputs.get() if self._is_second.get() else None

    @property
    def first_run(self) -> dict[int, Any] | None:
        """Where blocks store their outputs, during the first run; else None."""
        return None if self._is_second.get() else self._outputs.get()

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        """Inside, the first run begins at once and the second with :meth:`go_on`."""
        self._outputs.put({})
        try:
            yield
        finally:
            self._outputs.clear()
            self._is_second.clear()

    def go_on(self) -> None:
        """Begin the second run."""
        self._is_second.put(True)


class WatchedBlock(StandIn):
    """A block without attachment. Its features are noted in passes that ask for it."""

    is_place = True  # whether its features are noted
    unfolds = False  # whether one row per input becomes one row per draw and input here
    remembers = False  # whether a second run can skip it, see Twice
    batch_arguments: Mapping[int | str, int] = MappingProxyType({})  # see repeat_rows; attach() finds them
    state: PassState

    def __init__(self, block: Block) -> None:
        super().__init__(block.module)
        self.layout = block.layout

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.state.check_runs(isinstance(self, AttachedBlock))
        x = first_argument(args, kwargs)
        output = self._output(x, args, kwargs)
        main = first_tensor(output)
        assert main is not None
        if self.is_place and self.state.plain:  # its rows get no addition: they can be noted before the attachment runs
            self.state.note(main, self.layout)
        total = self._add(x, main)
        if self.is_place and not self.state.plain:
            self.state.note(total, self.layout)
        if isinstance(output, tuple | list):
            items = (total, *output[1:])
            if isinstance(self.block, nn.RNNBase):
                items = (total, _last_states(self.block, output[1], total))
            return with_items(output, items)
        return total

    def _output(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the block's own output."""
        twice = self.state.twice
        first_outputs = twice.outputs
        if first_outputs is not None and self.remembers and self.state.layer.draws == 1:
            return first_outputs[id(self)]
        args, kwargs = repeat_rows(args, kwargs, self.batch_arguments, self.state.views)
        output = self.block(*args, **kwargs)
        if self.remembers and (memory := twice.first_run) is not None:
            memory[id(self)] = _copy(output)
        return output

    def _add(self, x: Tensor, main: Tensor) -> Tensor:
        """Return the block's output ``main`` with the attachment's addition; here there is none."""
        return main


class AttachedBlock(WatchedBlock):
    """A block with its attachment: block(x) + attachment for every held draw, after the rows of the plain network."""

    def __init__(self, block: Block, attachment: Attachment | Bounded) -> None:
        super().__init__(block)
        self.attachment = attachment
        self.state = PassState(bayesian_layers(attachment)[0])

    def _add(self, x: Tensor, main: Tensor) -> Tensor:
        state = self.state
        if state.twice.first_run is not None:
            return main
        if isinstance(self.attachment, Bounded):
            comes_along = state.groups > state.layer.draws
            if self.unfolds and comes_along and state.groups == 2 and not state.views:
                return torch.cat([main, self.attachment(main, self._mask_of(main), onto=True)])
            if self.unfolds and (state.groups > 1 or state.views):
                main = spread(main, state.views or (0,) * state.groups)
            # The rows of the plain network come first and get no addition.
            first = main.shape[0] // state.groups if comes_along else 0
            own = main[first:]
            return torch.cat([main[:first], self.attachment(own, self._mask_of(own), onto=True)])
        if self.unfolds and state.views:
            x, main = spread(x, state.views), spread(main, state.views)
            return main + self.attachment(x, main.shape[1:], folded=True)
        side = self.attachment(x, main.shape[1:], folded=not self.unfolds)
        if self.unfolds:
            return (main.unsqueeze(0) + side.unflatten(0, (-1, main.shape[0]))).flatten(0, 1)
        return main + side

    def _mask_of(self, own: Tensor) -> Tensor | None:
        """Return the mask of the inputs, repeated for every draw; None for rows that it does not fit."""
        mask = self.state.mask
        if mask is None or self.layout != "tokens" or own.ndim != 3 or own.shape[1] != mask.shape[1]:
            return None
        return mask.repeat(own.shape[0] // mask.shape[0], 1)


class ReplacedBlock(nn.Module):
    """A Bayesian block instead of a block. It returns rows for every held draw."""

    unfolds = False

    def __init__(self, block: Block, attachment: Attachment) -> None:
        super().__init__()
        self.attachment = attachment
        self.shape = block.output[1:]
        self.state = PassState(bayesian_layers(attachment)[0])

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        self.state.check_runs(True)
        x = first_argument(args, kwargs)
        views = self.state.views if self.unfolds else ()
        return self.attachment(spread(x, views) if views else x, self.shape, folded=bool(views) or not self.unfolds)


class Readout(StandIn):
    """The last linear layer. Its input is noted in passes that ask for it."""

    state: PassState

    def forward(self, x: Tensor) -> Tensor:
        if self.state.features is not None and self.state.twice.outputs is None:
            self.state.last = x[: self.state.rows].float()
        return self.block(x)


def _last_states(layers: nn.RNNBase, states: Any, total: Tensor) -> Any:
    """Return the last states of recurrent layers that fit to their outputs after an addition.

    The states of the last layer are taken from its outputs. Those of other layers, and memory cells, are repeated.

    states  as the layers returned them, [layers, B, features]; of an LSTM, a pair with the memory cells
    total   outputs of the last layer after the addition, [S·B, T, features]
    """
    if isinstance(states, tuple):
        hidden = _last_states(layers, states[0], total)
        return hidden, torch.cat([states[1]] * (hidden.shape[1] // states[1].shape[1]), 1)
    width = states.shape[2]
    ends = [total[:, -1, :width], total[:, 0, width:]] if layers.bidirectional else [total[:, -1]]
    others = states[: -len(ends)]
    return torch.cat([torch.cat([others] * (total.shape[0] // states.shape[1]), 1), torch.stack(ends)])


def _copy(output: Any) -> Any:
    """Return a copy of a block's output: the network may change the original in place."""
    if isinstance(output, Tensor):
        return output.clone()
    if isinstance(output, tuple | list):
        return with_items(output, [_copy(each) for each in output])
    return output


def repeat_rows(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch_arguments: Mapping[int | str, int], views: tuple[int, ...] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a block's arguments, all for as many inputs as the first one, which has a row for each draw and input.

    batch_arguments  positions and names of the others that have rows for each input, and how many: a padding mask has
                     one, a bias of attention may have one for each head
    views            which view each draw looks at, where these have rows for each view and input
    """
    if not batch_arguments:
        return args, kwargs
    rows = first_argument(args, kwargs).shape[0]

    def repeat(place: int | str, value: Any) -> Any:
        wanted = rows * batch_arguments.get(place, 0)
        if not wanted or not isinstance(value, Tensor) or value.shape[0] == wanted:
            return value
        return spread(value, views or (0,) * (wanted // value.shape[0]))

    return tuple(repeat(*each) for each in enumerate(args)), {name: repeat(name, each) for name, each in kwargs.items()}
