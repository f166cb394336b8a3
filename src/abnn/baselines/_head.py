"""A network as features and a linear head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from abnn.errors import InputError, explain
from abnn.model.blocks import evaluating, probe
from abnn.model.graft import graft


def split_head(backbone: nn.Module, example: Tensor) -> tuple[nn.Module, nn.Linear]:
    """(trunk, head) with backbone(x) = head(trunk(x)); both share the backbone's parameters."""
    found = probe(backbone, example)
    linear = [name for name, call in found.calls.items() if isinstance(found.modules[name], nn.Linear) and call.output]
    if linear:
        head = found.modules[max(linear, key=lambda name: found.calls[name].order)]
        assert isinstance(head, nn.Linear)
        trunk = graft(backbone, {head: nn.Identity()})
        with torch.no_grad(), evaluating(backbone):
            features = trunk(example)
            fits = isinstance(features, Tensor) and features.shape == (len(example), head.in_features)
            if fits and torch.equal(head(features), backbone(example)):
                return trunk, head
    raise InputError(
        explain(
            "backbone",
            f"{type(backbone).__name__}, whose output is not that of a linear layer",
            "a network that ends with nn.Linear",
            "Wrap it so that its last operation is a linear layer on one feature vector per input.",
        )
    )
