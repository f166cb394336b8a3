"""A second view of a network in which some modules are replaced. The network itself does not change.

Containers on the way to a replaced module are copied without their contents: parameters, buffers and all other modules
are shared with the original, so training, moving or loading one view changes both.

Without gradients, torch's transformer layers compute in one kernel what their modules would, and its encoders give
their layers sentences without padding, as nested tensors. Both would pass by what was replaced. So copies of them take
no such shortcut, see ``SHORTCUTS``: they compute what they compute with gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from abnn.errors import AttachError

SHORTCUTS: dict[str, Any] = {"use_nested_tensor": False, "activation_relu_or_gelu": 0}
"""Attributes of torch's transformer encoders and of their layers, and the values with which these take no shortcut."""


class StandIn(nn.Module):
    """Takes a block's place and holds it. The block's attributes can still be read, such as ``layers[0].self_attn``."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):  # __deepcopy__, for example, would copy the block alone
                raise
            return getattr(super().__getattr__("block"), name)


def graft(root: nn.Module, replacements: Mapping[nn.Module, nn.Module]) -> nn.Module:
    """Return a view of ``root`` in which each key of ``replacements`` is replaced by its value, wherever it occurs."""
    result: dict[int, nn.Module] = {id(old): new for old, new in replacements.items()}

    def rebuild(module: nn.Module) -> nn.Module:
        if id(module) in result:
            return result[id(module)]
        children = {name: rebuild(child) for name, child in module._modules.items() if child is not None}
        differs = any(children[name] is not module._modules[name] for name in children)
        result[id(module)] = _shell(module, children) if differs else module
        return result[id(module)]

    return rebuild(root)


def _shell(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    """Return a copy of a container with other children; parameters and buffers are shared."""
    if isinstance(module, torch.jit.ScriptModule):
        raise AttachError(
            "backbone: got a TorchScript module, whose blocks cannot be replaced; pass the Python module."
        )
    shell = object.__new__(module.__class__)  # calling the class could do anything else
    shell.__dict__.update(module.__dict__)
    shell.__dict__["_modules"] = {name: children.get(name) for name in module._modules}
    shell.__dict__.update(_shortcuts(module))
    return shell


def _shortcuts(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that forbid shortcuts, with the values that do so; none of most modules."""
    if not isinstance(module, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        return {}
    return {name: value for name, value in SHORTCUTS.items() if name in module.__dict__}


@contextlib.contextmanager
def without_shortcuts(network: nn.Module) -> Iterator[None]:
    """Inside, the network takes no shortcut past its modules, as no :func:`graft` of it does."""
    changed = [(part.__dict__, _shortcuts(part)) for part in network.modules()]
    before = [{name: attributes[name] for name in forbidden} for attributes, forbidden in changed]
    for attributes, forbidden in changed:
        attributes.update(forbidden)
    try:
        yield
    finally:
        for (attributes, _), own in zip(changed, before):
            attributes.update(own)
