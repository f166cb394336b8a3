"""What stands in a block's place: the block with its attachment beside it, or a Bayesian block instead of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from abnn.attachments import Attachment
from abnn.blocks import Block, first_tensor
from abnn.features import note
from abnn.graft import StandIn
from abnn.views import batches_in, spread


class Carried:
    """The plain network within a pass of the draws: its rows go ahead of the draws' rows, without additions.

    Everything before the first attachment is computed once for both, and what the distance needs of the plain network is
    noted on the way. The rows end at the last attachment.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.rows = 0
        self.noted: list[Tensor] = []


class AttachedBlock(StandIn):
    """A block with its attachment: block(x) + attachment(x), once for every held draw."""

    unfolds = False  # whether this is where one row per input becomes one row per draw and input
    ends = False  # whether this is the last attachment
    carried: Carried | None = None
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
        added = self._add(x, main) if self.carried is None else self._add_after_plain(x, main, self.carried)
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

    def _add_after_plain(self, x: Tensor, main: Tensor, carried: Carried) -> Tensor:
        if self.unfolds:
            carried.rows = len(main) // batches_in(self.seen)
            carried.noted.append(note(x[: carried.rows], self.layout))
            plain, added = main[: carried.rows], self._add(x, main)
        else:
            plain, added = main[: carried.rows], self._add(x[carried.rows :], main[carried.rows :])
        carried.noted.append(note(plain, self.layout))
        return added if self.ends else torch.cat([plain, added])


class ReplacedBlock(nn.Module):
    """A Bayesian block in the place of a block, once for every held draw."""

    unfolds = False
    seen: tuple[int, ...] = ()

    def __init__(self, attachment: Attachment, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.attachment = attachment
        self.shape = shape

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        x = args[0] if args else next(iter(kwargs.values()))
        if self.seen:
            return self.attachment(spread(x, self.seen), self.shape, folded=True)
        return self.attachment(x, self.shape, folded=not self.unfolds)
