"""The features that are noted of a block: mean and standard deviation of every channel over all positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.model.blocks import Block
from abnn.model.calls import first_argument, first_tensor
from abnn.model.graft import StandIn

MAX_FEATURES = 1024
"""Of all blocks together. Where there are more, several are added up, see :func:`sketch`."""
OF_A_PLACE = 256
"""The same limit for one place alone."""


def widths_of(blocks: Sequence[Block]) -> list[int]:
    """Return the number of features of the first block's input and of each block's output."""
    first = [statistics(block.input, block.layout) for block in blocks[:1]]
    return first + [statistics(block.output, block.layout) for block in blocks]


def sketch_factor(widths: Sequence[int]) -> int:
    """Return how many features :func:`sketch` must add up so that at most ``MAX_FEATURES`` are left of these widths."""
    return max(1, -(-sum(widths) // MAX_FEATURES))


def sketch(features: Tensor, factor: int) -> Tensor:
    """Return sums of ``factor`` features with alternating signs: a fixed projection that keeps wide networks cheap."""
    if factor == 1:
        return features
    if missing := -features.shape[1] % factor:  # padding by zero columns would copy
        features = F.pad(features, (0, missing))
    rows = features.unflatten(1, (-1, factor))
    if factor == 2:
        return rows[..., 0] - rows[..., 1]
    if factor % 2 == 0:  # two kernels
        return (rows[..., ::2] - rows[..., 1::2]).sum(2)
    return rows[..., ::2].sum(2) - rows[..., 1::2].sum(2)


def condense(features: Tensor) -> Tensor:
    """Return the features of one place, sketched to at most ``OF_A_PLACE``; tokens as they are."""
    if not features.is_floating_point():
        return features
    return sketch(features, -(-features.shape[1] // OF_A_PLACE))


def direction(last: Tensor) -> Tensor:
    """Return the direction of the last features, without their length, condensed like the features of a place."""
    return condense(F.normalize(last, dim=1))


def condensed_width(shape: tuple[int, ...], layout: str) -> int:
    """Return how many features :func:`condense` leaves of a tensor of this shape."""
    width = statistics(shape, layout)
    return -(-width // -(-width // OF_A_PLACE))


class Recorder(StandIn):
    """A block that notes the features of its output, and of its input if it is the first block."""

    def __init__(self, block: Block, first: bool) -> None:
        super().__init__(block.module)
        self.layout = block.layout
        self.first = first
        self.mask: Tensor | None = None  # of the inputs, see note()
        self.features: list[Tensor] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = first_argument(args, kwargs)
        output = self.block(*args, **kwargs)
        tensor = first_tensor(output)
        assert tensor is not None
        mask = self.mask  # draws come one after the other
        mask = None if mask is None else mask.repeat(tensor.shape[0] // mask.shape[0], 1)
        self.features = [note(each, self.layout, mask) for each in ((x, tensor) if self.first else (tensor,))]
        return output

    def take(self) -> list[Tensor]:
        """Return the features of the last pass, and forget them."""
        features, self.features = self.features, []
        return features


def note(tensor: Tensor, layout: str, mask: Tensor | None = None) -> Tensor:
    """Return mean and standard deviation of every channel over all positions, [B, 2·channels].

    A tensor without positions, [B, F], comes back as it is.

    mask  [B, L], true where a token is no padding; padding does not count. It is ignored for another number of tokens
    """
    if tensor.ndim == 2:
        return tensor
    if mask is not None and layout == "tokens" and tensor.shape[:-1] == mask.shape:
        weight = mask[..., None].float()
        count, values = weight.sum(1).clamp_min(1), tensor.float()
        mean = (values * weight).sum(1) / count
        spread = ((values - mean[:, None]).square() * weight).sum(1) / count
        return torch.cat([mean, spread.sqrt()], dim=1)
    positions = tensor.flatten(1, -2).transpose(1, 2) if "tokens" in layout else tensor.flatten(2)
    return torch.cat(_mean_and_std(positions), dim=1)


def meaning(words: Tensor, embeddings: Tensor) -> Tensor:
    """Return the direction of the mean embedding of each sentence's words, [B, E]. Negative tokens are no words."""
    vectors = embeddings[words.clamp(0, len(embeddings) - 1)].float()
    return F.normalize((vectors * (words >= 0)[..., None]).sum(1), dim=1)


def _mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over the last dimension, in float32.

    On the CPU ``torch.std_mean`` is not vectorised and takes ten times as long as the two means here.
    """
    if x.is_cuda:
        return _by_sums(x) if x.dtype == torch.bfloat16 else torch.std_mean(x.float(), dim=2, correction=0)[::-1]
    x = x.float()
    mean = x.mean(2)
    return mean, (x - mean[..., None]).square().mean(2).sqrt()


def _by_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return E[x] and sqrt(E[x^2] - E[x]^2) of bfloat16 on CUDA.

    The sums are in float32, without a float32 copy of all features. The difference is exact to a few times 2^-24
    E[x]^2. So the standard deviation is exact to a few times 2^-12 |E[x]| at worst, where it is nearly zero. Rounding
    to bfloat16 has already moved every value by up to 2^-9 of it.
    """
    mean = x.mean(2, dtype=torch.float32)
    square = torch.linalg.vector_norm(x, dim=2, dtype=torch.float32) ** 2 / x.shape[2]
    return mean, (square - mean**2).clamp_min(0).sqrt()


def statistics(shape: tuple[int, ...], layout: str) -> int:
    """Return the number of features that :func:`note` makes of a tensor of this shape."""
    if len(shape) == 2:
        return shape[1]
    return 2 * (shape[-1] if "tokens" in layout else shape[1])
