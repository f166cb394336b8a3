"""Clip attachments onto a network, and take them off again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import Init
from abnn.bayes.priors import Prior
from abnn.errors import AttachError, InputError, explain
from abnn.model.attached import Attached, AttachedBlock, ReplacedBlock, check_draws
from abnn.model.attachments import Spec, build_attachments
from abnn.model.blocks import Block, check_example, probe
from abnn.model.folding import choose_fold
from abnn.model.objective import Preset
from abnn.model.objective import preset as choose_preset
from abnn.model.views import can_move, check_views


def attach(
    backbone: nn.Module,
    example: Tensor,
    at: str | Sequence[str] | None = None,
    kind: str | None = None,
    *,
    preset: str = "default",
    last: int | None = None,
    budget: int | None = None,
    width: int | None = None,
    share: bool | None = None,
    prior: Prior | None = None,
    init: Init | None = None,
    draws: int = 10,
    seed: int = 0,
    views: int | None = None,
) -> Attached:
    """Clip a Bayesian attachment beside each block of a network.

    The backbone is not copied and not changed: the returned model is a second view that shares its weights.

    backbone  any module that maps a batch to logits, on any device
    example   one or a few inputs, for one probing pass
    at        names of blocks, or patterns such as "layer4.*"; None finds the blocks
    kind      "conv", "bottleneck", "chain" or "replace"; see :class:`abnn.model.attachments.Spec`, also for width, share,
              prior and init. None: what the preset says
    preset    "default", "paper" or "authors": where all other settings come from, here and in :func:`abnn.train.fit`
    last      attach to the last so many blocks only
    budget    attach to as many of the last blocks as this number of learned numbers pays for
    draws     how many draws the model holds at first
    views     how many views of an image predictions look at, see :mod:`abnn.model.views`. None: what the preset says where all
              blocks have attachments; 1 with ``at``, ``last`` or ``budget``, for small images and for other inputs
    seed      of the attachments' initial values and first draws; the global random state is left alone
    """
    if not isinstance(backbone, nn.Module):
        fix = "By its name, abnn.build_backbone(name, classes) builds one."
        raise InputError(explain("backbone", repr(backbone)[:80], "a torch.nn.Module", fix))
    kinds = (Attached, AttachedBlock, ReplacedBlock)
    if any(isinstance(part, kinds) for part in backbone.modules()):
        raise AttachError(
            "backbone: got a network that has attachments already; accepted: a network without. "
            "Take them off with abnn.detach(model) first, or go on with the attached model."
        )
    if isinstance(backbone, torch.jit.ScriptModule):
        raise AttachError(
            "backbone: got a TorchScript module, whose blocks cannot be replaced; accepted: the Python module from which "
            "it was made."
        )
    draws = check_draws(draws)
    for argument, number in (("last", last), ("budget", budget)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise InputError(explain(argument, repr(number), "a whole number, or None"))
    example = check_example(backbone, example)
    chosen = choose_preset(preset)
    form = example.shape[1:], example.dtype
    if views is None:
        # What lies before the first attachment is computed once for every view: attachments on few blocks are to be cheap.
        views = chosen.views if can_move(*form) and at is last is budget is None else 1
    views = check_views(views, *form)
    spec = _spec(chosen, {"kind": kind, "width": width, "share": share, "prior": prior, "init": init})
    found = probe(backbone, example)
    blocks = found.blocks(at)
    if last is not None:
        if not 1 <= last <= len(blocks):
            raise InputError(explain("last", last, f"1 to {len(blocks)}, the number of blocks found"))
        blocks = blocks[-last:]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone, which is what fork_rng gives back here
        if budget is not None:
            blocks = _within_budget(blocks, spec, budget)
        model = Attached(backbone, example, blocks, spec, found)
        model.preset, model.score, model.views = preset, chosen.score, views
        choose_fold(model, example)
    model.resample(draws, seed=seed)
    known = set(backbone.modules())
    for module in model.modules():  # what is new starts in the backbone's mode
        if module not in known:
            module.training = backbone.training
    return model


def _spec(chosen: Preset, given: dict[str, Any]) -> Spec:
    """The preset's settings, overridden by what was given; settings of another kind than the preset's do not apply."""
    settings = dict(chosen.attach)
    if given["kind"] is not None and given["kind"] != settings.get("kind", Spec.kind):
        settings = {name: value for name, value in settings.items() if name == "prior"}
    return Spec(**{**settings, **{name: value for name, value in given.items() if value is not None}})


def detach(model: Attached) -> nn.Module:
    """Take the attachments off and return the backbone: the same object, with modes and gradient flags as it came."""
    if not isinstance(model, Attached):
        raise AttachError(
            f"model: got {type(model).__name__}, which has no attachments; accepted: what abnn.attach() returned."
        )
    backbone = model.backbone
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(model._requires_grad.get(name, parameter.requires_grad))
    for name, module in backbone.named_modules():
        module.training = model._modes.get(name, module.training)
    model.__dict__["_backbone"] = None
    return backbone


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
