"""A second tree of modules over the same weights, for one pass. What the pass sets on them stays in the pass.

Each module is copied without its contents. It shares parameters and buffers with the original. Mode, plain attributes,
lists, dicts and the noise that it holds are its own. So a pass can be in eval mode, hold other draws and note
features while the network is used elsewhere, and nothing has to be locked or put back.

Hooks are the network's own. Lists and dicts in which a hook may store features stay shared, or the pass would not find
them; those that hold modules do not. Passes of such networks take turns, see :func:`turn_of`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from abnn.bayes.layers import MeanField

SHARED = frozenset(
    ("_parameters", "_non_persistent_buffers_set", "_modules")
    + tuple(name for name in nn.Module().__dict__ if "hooks" in name)
)
CONTAINERS = (dict, OrderedDict, list)
Twins = dict[int, nn.Module]
_TURN = threading.RLock()


def shadow(root: nn.Module, swaps: Mapping[int, Any] | None = None) -> Twins:
    """Return a copy of every module of ``root`` in eval mode, by the id of the original.

    swaps  replacements of plain attributes of the modules, by the id of the original
    """
    copies = _Copies({**_written_by_hooks(root), **(swaps or {})})
    copies.add(root)
    return copies.twins


def turn_of(root: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return what a pass runs in: where hooks may store features, a lock; else nothing."""
    return _TURN if _written_by_hooks(root) else contextlib.nullcontext()


class _Copies:
    """Copies of modules. References to modules and their methods, also in lists and dicts, become references to copies.

    So what a network keeps in a list or dict during a pass stays in that pass. References in closures cannot be
    followed.
    """

    def __init__(self, copies: dict[int, Any]) -> None:
        self.twins: Twins = {}
        self.copies = copies  # of plain attributes, by the id of the original

    def add(self, root: nn.Module) -> None:
        """Copy all modules of ``root`` that have no copy yet."""
        modules = [module for module in root.modules() if id(module) not in self.twins]
        for module in modules:
            scripted = isinstance(module, torch.jit.ScriptModule)  # it has no attributes of its own to copy
            self.twins[id(module)] = module if scripted else object.__new__(module.__class__)
        for module in modules:  # a wrapper of torch.compile calls the original, so the copy runs without it
            if _is_compiled(module):
                self.twins[id(module)] = self.twins[id(module._orig_mod)]
        for module in modules:
            if not (self.twins[id(module)] is module or _is_compiled(module)):
                self._fill(self.twins[id(module)], module)

    def _fill(self, twin: nn.Module, module: nn.Module) -> None:
        """Give a copy its attributes."""
        attributes = {name: value if name in SHARED else self.of(value) for name, value in module.__dict__.items()}
        attributes["_modules"] = {name: self.of(child) for name, child in module._modules.items()}
        attributes["_buffers"] = dict(module._buffers)  # buffers that a pass replaces stay in the pass
        attributes["training"] = False
        if isinstance(module, MeanField):
            attributes["ready"] = None
        if attributes.get("_compiled_call_impl") is not None:
            attributes["_compiled_call_impl"] = None  # it calls the original
        twin.__dict__.update(attributes)
        for kind in type(module).__mro__:
            for slot in kind.__dict__.get("__slots__") or ():
                if slot != "__dict__" and hasattr(module, slot):
                    object.__setattr__(twin, slot, self.of(getattr(module, slot)))

    def of(self, value: Any) -> Any:
        """Return the copy of ``value``, or the value itself if it needs none."""
        if id(value) in self.copies:
            return self.copies[id(value)]
        if isinstance(value, nn.Module):
            if id(value) not in self.twins:  # it is not a submodule
                self.add(value)
            return self.twins[id(value)]
        if isinstance(value, types.MethodType):
            owner = value.__self__
            return types.MethodType(value.__func__, self.of(owner)) if isinstance(owner, nn.Module) else value
        if isinstance(value, functools.partial):
            copy: Any = functools.partial(self.of(value.func), *map(self.of, value.args), **self.of(value.keywords))
        elif type(value) in (dict, OrderedDict):
            copy = self.copies[id(value)] = type(value)()  # it may hold itself
            copy.update((key, self.of(each)) for key, each in value.items())
        elif type(value) is list:
            copy = self.copies[id(value)] = []
            copy.extend(map(self.of, value))
        elif type(value) is tuple:
            copy = tuple(map(self.of, value))
        else:
            return value
        self.copies[id(value)] = copy
        return copy


def _written_by_hooks(root: nn.Module) -> dict[int, Any]:
    """Return the lists and dicts of all modules that hooks refer to, and those that they refer to themselves, by their
    id."""
    modules = list(root.modules())
    reached = {id(each): each for module in modules for each in _reached_by_hooks(module)}
    held = {id(value) for module in modules for value in module.__dict__.values()} if reached else set()
    values = [value for key, value in reached.items() if key in held]
    for owner in reached.values():
        values += owner.__dict__.values() if isinstance(owner, nn.Module) else ()
    return {id(value): value for value in values if type(value) in CONTAINERS and not _holds_modules(value, set())}


def _holds_modules(value: Any, seen: set[int]) -> bool:
    """Return whether a value is or holds a module, or a function of one; ``seen``: containers that were looked into."""
    if type(value) in (*CONTAINERS, tuple) and id(value) not in seen:
        seen.add(id(value))
        items = tuple(value.values() if isinstance(value, dict) else value)  # a hook may write to it meanwhile
        return any(_holds_modules(each, seen) for each in items)
    return isinstance(value, nn.Module | types.MethodType | functools.partial)


def _reached_by_hooks(module: nn.Module) -> Iterator[Any]:
    """Yield the modules, lists and dicts that hooks of ``module`` refer to: as methods, in closures, as defaults, as
    arguments of a partial function, or as attributes of a callable object."""
    waiting: list[Any] = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, nn.Module) or type(each) in CONTAINERS:
            yield each
        elif callable(each) and not isinstance(each, type) and id(each) not in seen:
            seen.add(id(each))
            if isinstance(each, functools.partial):
                waiting += [each.func, *each.args, *each.keywords.values()]
            for cell in getattr(each, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # an empty cell
                    waiting.append(cell.cell_contents)
            waiting += [getattr(each, "__self__", None), *(getattr(each, "__defaults__", None) or ())]
            waiting += getattr(each, "__dict__", {}).values()


def _is_compiled(module: nn.Module) -> bool:
    """Return whether a module is a wrapper of ``torch.compile``.

    Its class is not imported, since that takes seconds.
    """
    return type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules
