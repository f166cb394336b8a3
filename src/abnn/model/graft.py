"""A second view of a network in which some modules are replaced. The network itself does not change.

Containers on the way to a replaced module are copied without their contents: parameters, buffers and all other modules
are shared with the original, so training, moving or loading one view changes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from abnn.errors import AttachError


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
    return shell
