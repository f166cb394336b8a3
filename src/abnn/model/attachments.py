"""The paper's attachments: small Bayesian modules that turn a block's input into an addition to its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.bayes.layers import BayesConv, BayesLinear, Init, MeanField
from abnn.bayes.priors import Prior
from abnn.config import AUTHORS_INIT, Spec
from abnn.errors import AttachError, explain
from abnn.model.blocks import Block
from abnn.model.bounded import WIDTH, Bounded
from abnn.model.threads import PerThread


class Attachment(nn.Module):
    """Base class of the paper's attachments: from the input of a block to an addition to its output.

    The default attachment is :class:`Bounded`.

    forward(x, shape, folded) returns S·B rows. ``x`` has S·B rows if ``folded``, else B. ``shape`` is that of one
    output, without the batch.
    """


class BayesBlock(nn.Module):
    """norm, ReLU, Bayesian layer, norm, ReLU, Bayesian layer, plus a shortcut: the layout of the paper's blocks."""

    def __init__(self, block: Block, prior: Prior, init: Init, uses: int) -> None:
        super().__init__()
        layout, width_in, width_out = _widths(block)
        self.layout = layout
        self.norm1 = _norm(layout, width_in)
        self.layer1 = _layer(block, width_in, width_out, prior, init, uses=uses)
        self.norm2 = _norm(layout, width_out)
        self.layer2 = _layer(block, width_out, width_out, prior, init, uses=uses, strided=False)
        same = block.input[1:] == block.output[1:]
        self.shortcut = None if same else _layer(block, width_in, width_out, prior, init, uses=uses, kernel=1)

    def forward(self, x: Tensor, shape: Sequence[int], folded: bool, use: int) -> Tensor:
        x = _pool(x, self.layout)
        # In place: nothing else reads the outputs of norm and layer, not even their gradients.
        side = self.layer1(F.relu(self.norm1(x), inplace=True), folded, use)
        side = self.layer2(F.relu(self.norm2(side), inplace=True), True, use)
        if self.shortcut is not None:
            base = self.shortcut(x, folded, use)
        elif folded:
            base = x
        else:
            base = x.unsqueeze(0).expand(side.shape[0] // x.shape[0], *x.shape).flatten(0, 1)
        if self.layout == "channels":
            side, base = fit_size(side, shape[1:]), fit_size(base, shape[1:])
        return side.add_(base)


class ChainLink(Attachment):
    """a_0 = B_0(h), a_k = B_k(a_{k-1}): the first link reads the first block's input, the others the link before.

    stream  what flows along the chain in a pass
    """

    def __init__(self, block: BayesBlock, stream: PerThread[Tensor], first: bool, last: bool, use: int = 0) -> None:
        super().__init__()
        self.block = block
        self.stream = stream
        self.first = first
        self.last = last
        self.use = use

    def forward(self, x: Tensor, shape: Sequence[int], folded: bool) -> Tensor:
        if self.first:
            value = self.block(x, shape, folded, self.use)
        else:
            value = self.block(self.stream.take(), shape, True, self.use)
        if not self.last:  # nothing stays behind after the pass
            self.stream.put(value)
        return value


def build_attachments(blocks: Sequence[Block], spec: Spec) -> list[Attachment | Bounded]:
    """Return one attachment for each block."""
    if spec.kind == "chain":
        return [*_build_chain(blocks, spec)]
    if spec.kind == "replace":
        init = spec.init or AUTHORS_INIT
        return [ChainLink(BayesBlock(block, spec.prior, init, uses=1), PerThread(), True, True) for block in blocks]
    return [Bounded(block, spec.width or WIDTH, spec.prior, spec.init) for block in blocks]


def learned_numbers(blocks: Sequence[Block], spec: Spec) -> int:
    """Return how many numbers the attachments of these blocks would learn."""
    with torch.device("meta"):
        parts = build_attachments(blocks, spec)
    return sum({id(p): p.numel() for part in parts for p in part.parameters()}.values())


def _build_chain(blocks: Sequence[Block], spec: Spec) -> list[Attachment]:
    stream: PerThread[Tensor] = PerThread()
    init = spec.init or AUTHORS_INIT
    if spec.share is False:
        chain = [BayesBlock(block, spec.prior, init, uses=1) for block in _links(blocks)]
        return [ChainLink(block, stream, index == 0, index == len(chain) - 1) for index, block in enumerate(chain)]
    shapes = {(block.input[1:], block.output[1:]) for block in blocks[1:]}
    if any(shape != output for shape, output in shapes) or len(shapes) > 1:
        raise AttachError(
            "share: got a shared chain on blocks of different shapes; accepted: blocks after the first with one and "
            "the same input and output shape. Use share=False, or limit the places with at=... or last=..."
        )
    first = BayesBlock(blocks[0], spec.prior, init, uses=1)
    links: list[Attachment] = [ChainLink(first, stream, True, len(blocks) == 1)]
    if len(blocks) > 1:
        uses = len(blocks) - 1
        rest = BayesBlock(blocks[1], spec.prior, init, uses=uses)
        links += [ChainLink(rest, stream, False, use == uses - 1, use) for use in range(uses)]
    return links


def _links(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks as links of a chain: the input of each has the shape of the output before it."""
    links = [blocks[0]]
    for block in blocks[1:]:
        if links[-1].layout != block.layout or len(links[-1].output) != len(block.output):
            actual = f"a chain from {links[-1].name!r} to {block.name!r}, whose layouts differ"
            fix = "Choose the places with at=... or last=..., or another kind."
            raise AttachError(explain("kind", actual, "blocks of one layout and number of dimensions", fix))
        links.append(Block(block.name, block.module, links[-1].output, block.output, block.layout))
    return links


def _pool(x: Tensor, layout: str) -> Tensor:
    """Return the mean over all positions, for blocks whose output has none."""
    if layout == "pooled tokens":
        return x.flatten(1, -2).mean(1)
    return x.flatten(2).mean(2) if layout == "pool" else x


def _widths(block: Block) -> tuple[str, int, int]:
    """Return the layout of an attachment (channels, tokens, flat, or pooled then flat) and its widths in and out."""
    if block.layout == "tokens":
        if len(block.input) == 3 and block.input[1] != block.output[1]:
            raise AttachError(
                f"at: {block.name!r} turns {block.input[1]} tokens into {block.output[1]}, which no attachment can "
                "follow; choose blocks that keep the number of tokens."
            )
        return "tokens", block.input[-1], block.output[-1]
    if block.layout == "pooled tokens":
        return block.layout, block.input[-1], block.output[1]
    if len(block.output) == 2:
        return ("flat" if len(block.input) == 2 else "pool"), block.input[1], block.output[1]
    if len(block.input) != len(block.output) or not 3 <= len(block.input) <= 5:
        raise AttachError(
            f"at: {block.name!r} turns shape {block.input} into {block.output}; accepted: one to three dimensions "
            "beside batch and channels, the same number before and after. Choose another place with at=..."
        )
    return "channels", block.input[1], block.output[1]


def _layer(
    block: Block,
    width_in: int,
    width_out: int,
    prior: Prior,
    init: Init,
    uses: int = 1,
    strided: bool = True,
    kernel: int = 3,
) -> MeanField:
    if len(block.output) == 2 or block.layout == "tokens":
        return BayesLinear(width_in, width_out, prior=prior, init=init, uses=uses)
    rank = len(block.input) - 2
    stride = [max(1, round(a / b)) if strided else 1 for a, b in zip(block.input[2:], block.output[2:])]
    return BayesConv(width_in, width_out, (kernel,) * rank, stride, prior=prior, init=init, uses=uses)


def _norm(layout: str, width: int) -> nn.Module:
    if layout != "channels":
        return nn.LayerNorm(width)
    return Norm(math.gcd(32, width), width)


class Norm(nn.GroupNorm):
    """Group normalisation whose scale can learn while its input does not.

    On the CPU, torch's backward pass for channels-last inputs writes the input's gradient even if none is needed. That
    ends the process (observed in torch 2.13). Other layouts are safe.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu" and not x.requires_grad and torch.is_grad_enabled():
            x = x.contiguous()
        return super().forward(x)


def fit_size(x: Tensor, size: Sequence[int]) -> Tensor:
    """Return the tensor with dimensions of ``size`` after the channels, by averaging or repeating."""
    if tuple(x.shape[2:]) == tuple(size):
        return x
    pools: tuple[Callable[..., Tensor], ...] = (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d)
    pool = pools[len(size) - 1]
    return pool(x, tuple(size))
