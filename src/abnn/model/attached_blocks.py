"""What stands in a block's place: the block as it is, watched; the block with its attachment; a Bayesian block instead of it."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import MeanField, bayesian_layers
from abnn.model.attachments import Attachment, current_thread
from abnn.model.beside import beside
from abnn.model.blocks import Block, first_tensor
from abnn.model.bounded import Bounded
from abnn.model.features import meaning, note
from abnn.model.graft import StandIn
from abnn.model.views import batches_in, spread


class PassState:
    """What the blocks of a network share in a pass. The network itself has one; a :class:`abnn.model.passes.Pass` brings its own.

    layer     any Bayesian layer of the network: it knows how many draws are held
    plain     whether the network without attachments comes along, as the first of the draws; a training step may say otherwise for
              passes of the network itself
    batches   how many views of the inputs come in, one batch after the other
    views     where one row per view and input comes in: which view each draw looks at, the plain network's first
    twice     what is remembered where the network runs once without attachments and once with them, see :class:`Twice`
    rows      how many inputs there are; set where something is noted
    table     embeddings of the tokens that go in, which are noted with what they mean; None: inputs are no tokens
    mask      where tokens of the inputs are no padding, [B, L]; None: nothing is said about that
    features  what was noted of the input and the blocks, for the first of the draws; None: nothing is noted
    last      what went into the last linear layer, likewise
    apart     whether features may be noted beside the pass, see :mod:`abnn.model.beside`
    beside    whether they are: decided when a pass begins
    read      what was noted, and how often it had been written to by then; only ``changes_outputs`` asks for it, else None
    """

    def __init__(
        self, layer: MeanField, views: tuple[int, ...] = (), noting: bool = False, plain: bool = False
    ) -> None:
        self.layer, self.views, self.batches, self.plain = layer, views, batches_in(views), plain
        self.rows = 0
        self.table: nn.Embedding | None = None
        self.twice = Twice()
        self.features: list[Tensor] | None = [] if noting else None
        self.last: Tensor | None = None
        self.apart = self.beside = False
        self.read: list[tuple[Tensor, int]] | None = None
        self._masks: dict[int, Tensor] = {}  # by the thread whose pass it is

    @property
    def mask(self) -> Tensor | None:
        return self._masks.get(current_thread()) if self._masks else None

    @contextlib.contextmanager
    def masked(self, mask: Tensor) -> Iterator[None]:
        """Inside, the mask of the inputs is known."""
        self._masks[current_thread()] = mask
        try:
            yield
        finally:
            self._masks.pop(current_thread(), None)

    @property
    def groups(self) -> int:
        """How many rows each input has after the first attachment."""
        return self.layer.draws + (self.plain and not self.twice.running)

    def note(self, tensor: Tensor, layout: str) -> None:
        if self.features is not None and self.twice.outputs is None:
            if self.read is not None:
                self.read.append((tensor, tensor._version))
            with beside(tensor.device, self.beside, tensor, self.mask):
                self.features.append(note(tensor[: self.rows], layout, self.mask))

    def note_words(self, tokens: Tensor) -> None:
        """Note tokens, [B, L], with -1 for padding, and the direction of their mean embedding, [B, E]."""
        if self.table is not None and self.features is not None and self.twice.outputs is None:
            with beside(tokens.device, self.beside, tokens, self.mask):
                words = tokens[: self.rows].long()
                if self.table.padding_idx is not None:
                    words = words.masked_fill(words == self.table.padding_idx, -1)
                words = words if self.mask is None else words.masked_fill(~self.mask, -1)
                self.features += [words, meaning(words, self.table.weight)]


class Twice:
    """What a pass that runs the network twice remembers. Passes of several threads do not meet.

    A network may use the number of its inputs anywhere, so that rows cannot become more half-way. Then it runs once as it is,
    and blocks up to the first attachment remember what they said; in the second run they say it again without computing it.
    """

    def __init__(self) -> None:
        self._known: dict[int, dict[int, Any]] = {}
        self._second: set[int] = set()

    def __reduce__(self) -> Any:
        return Twice, ()

    @property
    def running(self) -> bool:
        return len(self._known) > 0 and current_thread() in self._known

    @property
    def outputs(self) -> dict[int, Any] | None:
        """What blocks said in the first run, while the second runs."""
        return self._known[current_thread()] if len(self._second) > 0 and current_thread() in self._second else None

    @property
    def first_run(self) -> dict[int, Any] | None:
        """Where blocks put what they say, while the first runs."""
        return self._known[current_thread()] if self.running and current_thread() not in self._second else None

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        self._known[current_thread()] = {}
        try:
            yield
        finally:
            self._known.pop(current_thread(), None)
            self._second.discard(current_thread())

    def go_on(self) -> None:
        self._second.add(current_thread())


class WatchedBlock(StandIn):
    """A block as it is, whose output is noted in passes that ask for it."""

    noted = True  # whether it is one of the network's places
    unfolds = False  # whether this is where one row per input becomes one row per draw and input
    remembers = False  # whether a second run can do without computing it, see Twice
    with_batch: frozenset[int | str] = frozenset()  # see repeat_rows; attach() finds them
    state: PassState

    def __init__(self, block: Block) -> None:
        super().__init__(block.module)
        self.layout = block.layout

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else next(iter(kwargs.values()))
        output = self._output(x, args, kwargs)
        main = first_tensor(output)
        assert main is not None
        if self.noted and self.state.plain:  # whose rows come first and get no addition: the next ones need not wait
            self.state.note(main, self.layout)
        added = self._add(x, main)
        if self.noted and not self.state.plain:
            self.state.note(added, self.layout)
        if isinstance(output, tuple | list):
            items = (added, *output[1:])
            if isinstance(self.block, nn.RNNBase):
                items = (added, _last_states(self.block, output[1], added))
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        return added

    def _output(self, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        twice = self.state.twice
        said = twice.outputs
        if said is not None and self.remembers and self.state.layer.draws == 1:
            return said[id(self)]
        args, kwargs = repeat_rows(args, kwargs, self.with_batch, self.state.views)
        output = self.block(*args, **kwargs)
        if self.remembers and (known := twice.first_run) is not None:
            known[id(self)] = _copied(output)
        return output

    def _add(self, x: Tensor, main: Tensor) -> Tensor:
        return main


class AttachedBlock(WatchedBlock):
    """A block with its attachment: block(x) + attachment, once for every held draw, after the rows of the plain network."""

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
            # Rows of the plain network come first and get no addition.
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
        """The mask of the inputs for rows of tokens, once for every draw."""
        mask = self.state.mask
        if mask is None or self.layout != "tokens" or own.ndim != 3 or own.shape[1] != mask.shape[1]:
            return None
        return mask.repeat(own.shape[0] // mask.shape[0], 1)


class ReplacedBlock(nn.Module):
    """A Bayesian block in the place of a block, once for every held draw."""

    unfolds = False

    def __init__(self, block: Block, attachment: Attachment) -> None:
        super().__init__()
        self.attachment = attachment
        self.shape = block.output[1:]
        self.state = PassState(bayesian_layers(attachment)[0])

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        views = self.state.views if self.unfolds else ()
        return self.attachment(spread(x, views) if views else x, self.shape, folded=bool(views) or not self.unfolds)


class Readout(StandIn):
    """The last linear layer, whose input is noted in passes that ask for it."""

    state: PassState

    def forward(self, x: Tensor) -> Tensor:
        if self.state.features is not None and self.state.twice.outputs is None:
            self.state.last = x[: self.state.rows].float()
        return self.block(x)


def _last_states(layers: nn.RNNBase, states: Any, added: Tensor) -> Any:
    """Return the last states of recurrent layers for rows to which something was added: those of the last layer are its outputs.

    states  [layers, B, features], with memory cells beside them or not, as the layers gave them
    added   their outputs with what was added, [S·B, T, features]
    """
    if isinstance(states, tuple):
        hidden = _last_states(layers, states[0], added)
        return hidden, torch.cat([states[1]] * (hidden.shape[1] // states[1].shape[1]), 1)
    width = states.shape[2]
    ends = [added[:, -1, :width], added[:, 0, width:]] if layers.bidirectional else [added[:, -1]]
    others = states[: -len(ends)]
    return torch.cat([torch.cat([others] * (added.shape[0] // states.shape[1]), 1), torch.stack(ends)])


def _copied(output: Any) -> Any:
    """Return a block's output in memory of its own: a network may go on to change in place what its blocks say."""
    if isinstance(output, Tensor):
        return output.clone()
    if isinstance(output, tuple | list):
        items = [_copied(each) for each in output]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    return output


def repeat_rows(
    args: tuple[Any, ...], kwargs: dict[str, Any], with_batch: Collection[int | str], views: tuple[int, ...] = ()
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a block's inputs with as many rows as its first input has, which has one for each draw and input.

    with_batch  places and names of the other inputs that have a row for each input, such as padding masks
    views       where these have a row for each view and input: which view each draw looks at
    """
    if not with_batch:
        return args, kwargs
    rows = (args[0] if args else next(iter(kwargs.values()))).shape[0]

    def repeat(place: int | str, value: Any) -> Any:
        if place not in with_batch or not isinstance(value, Tensor) or value.shape[0] == rows:
            return value
        return spread(value, views or (0,) * (rows // value.shape[0]))

    return tuple(repeat(*each) for each in enumerate(args)), {name: repeat(name, each) for name, each in kwargs.items()}
