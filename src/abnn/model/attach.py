"""Which blocks of a network get attachments, and what can carry none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from abnn.config import Spec
from abnn.errors import AttachError, InputError, explain
from abnn.model.attached_blocks import AttachedBlock, ReplacedBlock
from abnn.model.attachments import build_attachments
from abnn.model.blocks import Block, Probe
from abnn.model.network import AttachedNetwork


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
            "backbone: got a TorchScript module, or one inside, whose blocks cannot be replaced; accepted: the Python module "
            "from which it was made."
        )
    return backbone


def choose_blocks(
    structure: Probe, at: str | Sequence[str] | None, last: int | None, budget: int | None, spec: Spec
) -> list[Block]:
    """Return the blocks that get attachments, in the order of their calls."""
    for argument, number in (("last", last), ("budget", budget)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise InputError(explain(argument, repr(number), "a whole number, or None"))
    blocks = structure.blocks(at)
    if last is not None:
        if not 1 <= last <= len(blocks):
            raise InputError(explain("last", last, f"1 to {len(blocks)}, the number of blocks found"))
        blocks = blocks[-last:]
    return blocks if budget is None else _within_budget(blocks, spec, budget)


def _within_budget(blocks: list[Block], spec: Spec, budget: int) -> list[Block]:
    for start in range(len(blocks)):
        with torch.device("meta"):
            parts = build_attachments(blocks[start:], spec)
        parameters = {id(p): p.numel() for part in parts for p in part.parameters()}
        if sum(parameters.values()) <= budget:
            return blocks[start:]
    raise AttachError(
        explain(
            "budget",
            budget,
            f"at least {sum(parameters.values())} for one attachment of kind {spec.kind!r} at {blocks[-1].name!r}",
            "Raise the budget, or use kind='bottleneck' with a small width.",
        )
    )
