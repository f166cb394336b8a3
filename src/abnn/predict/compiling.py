"""Networks that are compiled during their training: fewer and larger kernels, in the fastest layout for convolutions.

Compiling takes most of a minute and halves the time of a step on a GPU. So it pays for long trainings, and is off by
default. Prediction uses the network without compiling.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

_copies: dict[Any, Callable[..., Any]] = {}
_copy_numbers = itertools.count()
NARROW = 64  # up to this many channels, the compiler keeps the layout unless it is told otherwise


@contextlib.contextmanager
def compiled(modules: Sequence[nn.Module], enabled: bool = True) -> Iterator[None]:
    """Inside, the modules run compiled."""
    if not enabled:
        yield
        return
    for module in modules:
        module.compile(dynamic=False, options=options(module))
    try:
        yield
    finally:
        for module in modules:
            module._compiled_call_impl = None


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module runs compiled."""
    return module._compiled_call_impl is not None


def with_network(method: Callable[..., Any], network: nn.Module, kind: str) -> Callable[..., Any]:
    """Return a method that calls the network; compiled if the network is, so that both share kernels.

    kind  a name for everything else that decides what the method does. Methods of one kind, on networks of one form,
          are compiled once
    """
    if not is_compiled(network):
        return method
    assert isinstance(method, types.MethodType)
    form = tuple((name, tuple(value.shape)) for name, value in network.named_parameters())
    key = (method.__func__.__qualname__, kind, form)
    if key not in _copies:
        _copies[key] = separate_copy(method.__func__)
    return torch.compile(types.MethodType(_copies[key], method.__self__), dynamic=False, options=options(network))


def separate_copy(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a copy of a function that the compiler takes for another function.

    A compiler records with which arguments a function was called, up to a limit. Calls for other models must not count.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_copy_numbers)}")
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def options(module: nn.Module) -> dict[str, Any] | None:
    """Return options of the compiler. A narrow network on CUDA gets channels-last activations throughout, as in cuDNN.

    By itself the compiler leaves narrow networks as they are, which costs three changes of layout around every
    convolution. For other networks, and grouped convolutions, which can be slow with channels last, the compiler
    decides: None.
    """
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    narrow = all(part.groups == 1 and max(part.in_channels, part.out_channels) <= NARROW for part in convolutions)
    on_cuda = any(parameter.is_cuda for parameter in module.parameters())
    return {"force_layout_optimization": True} if on_cuda and convolutions and narrow else None
