"""What stands in a block's place: the block with its attachment beside it, or a Bayesian block instead of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from abnn.bayes.layers import MeanField, bayesian_layers
from abnn.model.attachments import Attachment
from abnn.model.blocks import Block, first_tensor
from abnn.model.features import note
from abnn.model.graft import StandIn
from abnn.model.views import batches_in, spread


class PassState:
    """What the blocks of a network share in a pass. The network itself has one; a :class:`Pass` brings its own.

    layer     any Bayesian layer of the network: it knows how many draws are held
    batches   how many views of the inputs come in, one batch after the other
    views     where one row per view and input comes in: which view each draw looks at
    features  those of the first block's input and of all outputs, for the first draw; None: they are not noted
    """

    def __init__(self, layer: MeanField, views: tuple[int, ...] = (), noting: bool = False) -> None:
        self.layer, self.views, self.batches = layer, views, batches_in(views)
        self.features: list[Tensor] | None = [] if noting else None

    def note(self, x: Tensor, output: Tensor, layout: str) -> None:
        if self.features is None:
            return
        rows = len(output) // self.layer.draws
        if not self.features:
            self.features.append(note(x[:rows], layout))
        self.features.append(note(output[:rows], layout))


class AttachedBlock(StandIn):
    """A block with its attachment: block(x) + attachment(x), once for every held draw."""

    unfolds = False  # whether this is where one row per input becomes one row per draw and input
    with_batch: frozenset[int | str] = frozenset()  # see repeat_rows; attach() finds them

    def __init__(self, block: Block, attachment: Attachment) -> None:
        super().__init__(block.module)
        self.attachment = attachment
        self.layout = block.layout
        self.state = PassState(bayesian_layers(attachment)[0])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not self.unfolds:
            args, kwargs = repeat_rows(args, kwargs, self.state.layer.draws, self.with_batch)
        output = self.block(*args, **kwargs)
        x = args[0] if args else next(iter(kwargs.values()))
        main = first_tensor(output)
        assert main is not None
        added = self._add(x, main)
        self.state.note(x, added, self.layout)
        if isinstance(output, tuple | list):
            items = (added, *output[1:])
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        return added

    def _add(self, x: Tensor, main: Tensor) -> Tensor:
        if self.unfolds and self.state.views:
            x, main = spread(x, self.state.views), spread(main, self.state.views)
            return main + self.attachment(x, main.shape[1:], folded=True)
        side = self.attachment(x, main.shape[1:], folded=not self.unfolds)
        if self.unfolds:
            return (main.unsqueeze(0) + side.unflatten(0, (-1, main.shape[0]))).flatten(0, 1)
        return main + side


class ReplacedBlock(nn.Module):
    """A Bayesian block in the place of a block, once for every held draw."""

    unfolds = False

    def __init__(self, block: Block, attachment: Attachment) -> None:
        super().__init__()
        self.attachment = attachment
        self.shape = block.output[1:]
        self.layout = block.layout
        self.state = PassState(bayesian_layers(attachment)[0])

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        views = self.state.views if self.unfolds else ()
        output = self.attachment(spread(x, views) if views else x, self.shape, folded=bool(views) or not self.unfolds)
        self.state.note(x, output, self.layout)
        return output


def repeat_rows(
    args: tuple[Any, ...], kwargs: dict[str, Any], draws: int, with_batch: Collection[int | str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a block's inputs with one row per draw and input, as its first input has them.

    with_batch  places and names of the other inputs that have a row for each input, such as padding masks
    """
    if draws == 1 or not with_batch:
        return args, kwargs

    def repeat(place: int | str, value: Any) -> Any:
        return value.repeat(draws, *(1,) * (value.ndim - 1)) if place in with_batch else value

    return tuple(repeat(*each) for each in enumerate(args)), {name: repeat(name, each) for name, each in kwargs.items()}
