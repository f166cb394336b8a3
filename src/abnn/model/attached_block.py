"""What stands in a block's place: the block with its attachment beside it, or a Bayesian block instead of it; and the network
that these make at their mean weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import MeanField
from abnn.bayes.noise import without_noise
from abnn.model.attachments import Attachment
from abnn.model.blocks import Block, evaluating, first_tensor
from abnn.model.features import note
from abnn.model.graft import StandIn
from abnn.model.views import spread


class Notes:
    """What is noted of the blocks in one pass of the held draws: features of the first draw, see :mod:`abnn.model.features`.

    draws  how many are held; the first looks at the first view
    """

    def __init__(self, draws: int) -> None:
        self.draws = draws
        self.forget()

    def forget(self) -> None:
        self.noted: list[Tensor] = []  # of the first block's input and of all outputs

    def take(self, x: Tensor, output: Tensor, layout: str) -> None:
        rows = len(output) // self.draws
        if not self.noted:
            self.noted.append(note(x[:rows], layout))
        self.noted.append(note(output[:rows], layout))


class AttachedBlock(StandIn):
    """A block with its attachment: block(x) + attachment(x), once for every held draw."""

    unfolds = False  # whether this is where one row per input becomes one row per draw and input
    notes: Notes | None = None
    seen: tuple[int, ...] = ()  # where one row per view and input comes in: which view each draw looks at

    def __init__(self, block: Block, attachment: Attachment) -> None:
        super().__init__(block.module)
        self.attachment = attachment
        self.layout = block.layout

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.block(*args, **kwargs)
        x = args[0] if args else next(iter(kwargs.values()))
        main = first_tensor(output)
        assert main is not None
        added = self._add(x, main)
        if self.notes is not None:
            self.notes.take(x, added, self.layout)
        if isinstance(output, tuple | list):
            items = (added, *output[1:])
            return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
        return added

    def _add(self, x: Tensor, main: Tensor) -> Tensor:
        if self.seen:
            return spread(main, self.seen) + self.attachment(spread(x, self.seen), main.shape[1:], folded=True)
        side = self.attachment(x, main.shape[1:], folded=not self.unfolds)
        if self.unfolds:
            return (main.unsqueeze(0) + side.unflatten(0, (-1, main.shape[0]))).flatten(0, 1)
        return main + side


class ReplacedBlock(nn.Module):
    """A Bayesian block in the place of a block, once for every held draw."""

    unfolds = False
    notes: Notes | None = None
    seen: tuple[int, ...] = ()

    def __init__(self, block: Block, attachment: Attachment) -> None:
        super().__init__()
        self.attachment = attachment
        self.shape = block.output[1:]
        self.layout = block.layout

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        rows, folded = (spread(x, self.seen), True) if self.seen else (x, not self.unfolds)
        output = self.attachment(rows, self.shape, folded=folded)
        if self.notes is not None:
            self.notes.take(x, output, self.layout)
        return output


class MeanNetwork:
    """A network with its attachments at their mean weights: a draw without noise, whose features are noted.

    Attachments were taught with outliers, which move the features of what is unlike the data away from it.

    turn  predictions from several threads take turns, for they hold their draws in the same layers; so does this
    """

    def __init__(
        self,
        net: nn.Module,
        blocks: Sequence[AttachedBlock | ReplacedBlock],
        layers: Sequence[MeanField],
        turn: Callable[[torch.device], contextlib.AbstractContextManager[None]],
    ) -> None:
        self.net, self.blocks, self.layers, self.turn = net, blocks, layers, turn

    def __call__(self, x: Tensor) -> list[Tensor]:
        """What is noted of the blocks in one pass."""
        with self.turn(x.device), evaluating(self.net), without_noise(self.layers), self.noting() as notes:
            self.net(x)
        return notes.noted

    @contextlib.contextmanager
    def noting(self) -> Iterator[Notes]:
        """Inside, a pass notes features of the first held draw, which has no noise."""
        notes = Notes(self.layers[0].draws)
        for block in self.blocks:
            block.notes = notes
        try:
            yield notes
        finally:
            for block in self.blocks:
                block.notes = None
