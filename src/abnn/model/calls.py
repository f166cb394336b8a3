"""What goes into one call of a module and comes out of it, the mode it runs in, and what it fails with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

OUT_OF_MEMORY = (torch.OutOfMemoryError, MemoryError)  # says nothing about a network


def first_argument(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the first argument of a call, whether it came by place or by name."""
    return args[0] if args else next(iter(kwargs.values()))


def first_tensor(output: Any) -> Tensor | None:
    """Return a module's output if it is a tensor, or the first item of a tuple or list; else None."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0]
    return None


def with_items(output: Any, items: Sequence[Any]) -> Any:
    """Return a tuple, a named one or a list, of the same type as ``output``."""
    return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)


def logits_of(output: Any) -> Tensor | None:
    """Return the logits in a network's output: its ``logits`` if it has any, else its first tensor, or None."""
    logits = getattr(output, "logits", None)
    if isinstance(output, Mapping) and logits is None:
        logits = output.get("logits", next((each for each in output.values() if isinstance(each, Tensor)), None))
    return logits if isinstance(logits, Tensor) else first_tensor(output)


def summary(error: Exception) -> str:
    """Return an error's type and message in one line."""
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


@contextlib.contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside, the network is in eval mode. Afterwards each module has its own mode again."""
    # An attached network also sets the mode of its backbone, whose containers are not among its modules.
    parts = [network, network.__dict__.get("_backbone")]
    modes = [(module, module.training) for part in parts if part is not None for module in part.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
