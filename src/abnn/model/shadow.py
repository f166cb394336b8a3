"""A second tree of modules over the same weights, for one pass: what the pass sets on them, no other pass sees.

Each module is copied without its contents. Parameters and buffers are those of the original; mode, plain attributes and held
noise are the copy's own. So a pass can be in eval mode, hold other draws and note features while the network is used elsewhere,
and nothing has to be locked or put back.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from abnn.bayes.layers import MeanField

SHARED = frozenset(
    ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")
    + tuple(name for name in nn.Module().__dict__ if "hooks" in name)
)
Twins = dict[int, nn.Module]


def shadow(root: nn.Module, swaps: Mapping[int, Any] | None = None) -> Twins:
    """Return the copy of every module of ``root`` in eval mode, by the id of the original.

    swaps  what stands in for plain attributes of the modules, by their id
    """
    twins: Twins = {}
    for module in root.modules():
        scripted = isinstance(module, torch.jit.ScriptModule)  # which has no attributes of its own to copy
        twins[id(module)] = module if scripted else module.__class__.__new__(module.__class__)
    follow = _Follow(twins, swaps or {})
    for module in root.modules():
        twin = twins[id(module)]
        if twin is module:
            continue
        own = {name: value if name in SHARED else follow(value) for name, value in module.__dict__.items()}
        own["_modules"] = {name: follow(child) for name, child in module._modules.items()}
        own["training"] = False
        if isinstance(module, MeanField):  # holds draws in its buffers
            own["_buffers"], own["ready"] = dict(module._buffers), None
        if own.get("_compiled_call_impl") is not None:
            own["_compiled_call_impl"] = None  # it calls the original
        twin.__dict__.update(own)
    return twins


class _Follow:
    """Turns references to modules, and to their methods, into references to the copies."""

    def __init__(self, twins: Twins, swaps: Mapping[int, Any]) -> None:
        self.twins, self.swaps = twins, swaps

    def __call__(self, value: Any) -> Any:
        if id(value) in self.swaps:
            return self.swaps[id(value)]
        if isinstance(value, nn.Module):
            return self.twins.get(id(value), value)
        if isinstance(value, types.MethodType) and id(value.__self__) in self.twins:
            return types.MethodType(value.__func__, self.twins[id(value.__self__)])
        if type(value) in (list, tuple) and any(isinstance(each, nn.Module | types.MethodType) for each in value):
            return type(value)(self(each) for each in value)
        if type(value) is dict and any(isinstance(each, nn.Module | types.MethodType) for each in value.values()):
            return {key: self(each) for key, each in value.items()}
        return value
