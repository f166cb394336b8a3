"""Which blocks of a network get attachments, how wide these may be, and which networks can have none."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from abnn.config import Spec
from abnn.errors import AttachError, InputError, explain
from abnn.model.attached_blocks import AttachedBlock, ReplacedBlock
from abnn.model.attachments import learned_numbers
from abnn.model.blocks import Block, Probe
from abnn.model.bounded import WIDTH
from abnn.model.inputs import Batch
from abnn.model.network import AttachedNetwork

SHARE = 0.05
"""The most parameters of all default attachments, as a share of the backbone's weights."""
MOST_BLOCKS, FEW_BLOCKS = 6, 3
COSTS, COSTS_OF_FEW = 0.1, 0.2
"""The largest share of all multiplications after the first attachment, since these are computed twice: with and without
attachments. The second number is for up to three blocks."""


def check_backbone(backbone: object) -> nn.Module:
    """Return the backbone, or raise an error for what cannot carry attachments."""
    if not isinstance(backbone, nn.Module):
        fix = "By its name, abnn.build_backbone(name, classes) builds one."
        raise InputError(explain("backbone", repr(backbone)[:80], "a torch.nn.Module", fix))
    if any(isinstance(part, AttachedNetwork | AttachedBlock | ReplacedBlock) for part in backbone.modules()):
        raise AttachError(
            "backbone: got a network that has attachments already; accepted: a network without. "
            "Take them off with abnn.detach(model) first, or go on with the attached model."
        )
    if any(isinstance(part, torch.jit.ScriptModule) for part in backbone.modules()):
        raise AttachError(
            "backbone: got a TorchScript module, or one inside, whose blocks cannot be replaced; accepted: the Python "
            "module from which it was made."
        )
    return backbone


def choose_blocks(
    structure: Probe,
    example: Batch,
    at: str | Sequence[str] | None,
    last: int | None,
    budget: int | None,
    spec: Spec,
) -> tuple[list[Block], Spec]:
    """Return the blocks that get attachments, in the order of their calls, and the spec with a width within the budget.

    Without ``at`` and ``last``, bounded attachments go to the last few blocks, so that little is computed twice.

    at      names of modules, or patterns; None: all blocks are candidates
    last    attach to the last so many blocks only
    budget  the most parameters of all attachments; None: ``SHARE`` of the backbone's for bounded ones without a
            width, else no limit
    """
    for argument, number in (("last", last), ("budget", budget)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise InputError(explain(argument, repr(number), "a whole number, or None"))
    blocks = structure.blocks(at)
    if at is None:
        blocks = structure.that_reach_the_output(blocks, example)
    bounded = spec.kind == "bounded"
    if last is not None:
        if not 1 <= last <= len(blocks):
            raise InputError(explain("last", last, f"1 to {len(blocks)}, the number of blocks found"))
        blocks = blocks[-last:]
    elif at is None and bounded:
        shares = structure.shares_after(blocks, example)
        cheap, few = ([b for b, share in zip(blocks, shares) if share <= most] for most in (COSTS, COSTS_OF_FEW))
        blocks = max(cheap[-MOST_BLOCKS:], few[-FEW_BLOCKS:], key=len) or blocks[-1:]
    if budget is None and not (bounded and spec.width is None):
        return blocks, spec
    most = int(SHARE * structure.weights) if budget is None else budget
    widths = [spec.width] if spec.width is not None or not bounded else [*range(1, WIDTH + 1)]
    for start in range(len(blocks) if at is None or budget is not None else 1):
        numbers = partial(_numbers_of_width, blocks[start:], spec)
        if affordable := bisect_right(widths, most, key=numbers):
            return blocks[start:], replace(spec, width=widths[affordable - 1])
    least = replace(spec, width=widths[0])
    if budget is None:  # the network is too small for any attachment, so take the smallest
        return blocks[-1:] if at is None else blocks, least
    place = f"one attachment of kind {spec.kind!r} at {blocks[-1].name!r}"
    needed = f"at least {learned_numbers(blocks[-1:], least)} for {place}"
    raise AttachError(explain("budget", budget, needed, "Raise the budget."))


def _numbers_of_width(blocks: Sequence[Block], spec: Spec, width: int | None) -> int:
    return learned_numbers(blocks, replace(spec, width=width))


def watched_blocks(structure: Probe, attached: Sequence[Block]) -> list[Block]:
    """Return all blocks in the order of their calls: those with attachments, and others that do not overlap them."""
    try:
        blocks = structure.blocks()
    except AttachError:
        blocks = []
    names = [block.name for block in attached]
    others = [block for block in blocks if not any(_overlap(block.name, name) for name in names)]
    return sorted([*others, *attached], key=lambda block: structure.calls[block.name].order)


def _overlap(one: str, other: str) -> bool:
    """Return whether two names are the same module, or one module is inside the other."""
    return one == other or one.startswith(f"{other}.") or other.startswith(f"{one}.")
