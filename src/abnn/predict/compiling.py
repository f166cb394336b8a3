"""Networks compiled for the time of their training: fewer and larger kernels, in the layout that convolutions like best.

Compiling takes the better part of a minute and halves the time of a step on a GPU, so it pays for long trainings
and has to be asked for. Prediction goes on with the network as it was.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

_kinds: dict[Any, Callable[..., Any]] = {}
_numbers = itertools.count()
NARROW = 64  # channels up to which the compiler changes no layout of its own accord


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
    return module._compiled_call_impl is not None


def with_network(method: Callable[..., Any], network: nn.Module, kind: str) -> Callable[..., Any]:
    """A method that calls the network: compiled with it, if the network is, so that what follows joins its kernels.

    ``kind`` says what else decides what the method does; those of one kind on networks of one form share what is compiled.
    """
    if not is_compiled(network):
        return method
    assert isinstance(method, types.MethodType)
    form = tuple((name, tuple(value.shape)) for name, value in network.named_parameters())
    key = (method.__func__.__qualname__, kind, form)
    if key not in _kinds:
        _kinds[key] = of_its_own(method.__func__)
    return torch.compile(types.MethodType(_kinds[key], method.__self__), dynamic=False, options=options(network))


def of_its_own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as another one: compilers count and compare what a function has been called with, up to a limit,
    and calls for other models do not belong to it."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_numbers)}")
    copy = types.FunctionType(code, function.__globals__, code.co_name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def options(module: nn.Module) -> dict[str, Any] | None:
    """For a narrow network on CUDA: channels-last activations throughout, as cuDNN computes them.

    The compiler leaves narrow networks as they are, which costs three changes of layout around every convolution. Others, and
    grouped convolutions, which can be slow with channels last, are left to its own judgement.
    """
    convolutions = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
    narrow = all(part.groups == 1 and max(part.in_channels, part.out_channels) <= NARROW for part in convolutions)
    on_cuda = any(parameter.is_cuda for parameter in module.parameters())
    return {"force_layout_optimization": True} if on_cuda and convolutions and narrow else None
