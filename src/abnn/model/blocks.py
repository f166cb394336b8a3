"""Which parts of a network are its blocks, and the shapes of their inputs and outputs, found in one probing pass."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from abnn.errors import AttachError, InputError, explain
from abnn.model.calls import OUT_OF_MEMORY, evaluating, first_tensor, logits_of, summary, with_items
from abnn.model.graft import without_shortcuts
from abnn.model.inputs import Batch, Inputs, call, check_tied, read

_OF_ANY_OUTPUT: ContextVar[bool] = ContextVar("of_any_output", default=False)  # see of_any_output()
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Block:
    """A module that can get an attachment, with the shapes of its input and output (batch first)."""

    name: str
    module: nn.Module
    input: tuple[int, ...]
    output: tuple[int, ...]
    layout: str  # "flat", "tokens" (features last), "pooled tokens" (features last, no positions after) or "channels"


@dataclass
class _Call:
    """How often a module was called in a pass, its place in the order of calls, the shapes of input and output, and
    whether the output is several tensors."""

    count: int
    order: int
    input: tuple[int, ...] | None
    output: tuple[int, ...] | None
    has_more: bool = False


@dataclass(frozen=True)
class Probe:
    """What one pass of an example through a network shows."""

    calls: dict[str, _Call]
    modules: dict[str, nn.Module]
    batch: int
    activation_numbers: int  # the most numbers that one module reads and writes for one input
    logits: Tensor | None  # the network's output
    heads: frozenset[str]  # names of the linear layers that made this very output

    @property
    def end(self) -> int:
        """The place, in the order of calls, of the layer that makes the output; that of the last call where none does."""
        return max((self.calls[name].order for name in self.heads), default=len(self.calls))

    @property
    def has_later_outputs(self) -> bool:
        """Whether modules with weights are called after the layer that makes the output: they make other outputs."""
        later = (self.modules[name] for name, call in self.calls.items() if call.order > self.end)
        return any(_weight_count(module) for module in later)

    @property
    def weights(self) -> int:
        """The number of parameters of the network."""
        return sum(parameter.numel() for parameter in self.modules[""].parameters())

    def shares_after(self, blocks: Sequence[Block], example: Batch) -> list[float]:
        """Return the share of the network's multiplications that come after each block, counted in one more pass.

        Where they cannot be counted, all blocks are taken to cost the same.
        """
        flops_so_far: dict[str, int] = {}
        counter, network = FlopCounterMode(display=False), self.modules[""]

        def note(name: str) -> Any:
            return lambda *_: flops_so_far.update({name: counter.get_total_flops()})

        try:
            with _hooking(network) as hooks, torch.no_grad(), counter:
                for block in blocks:
                    hooks.enter_context(block.module.register_forward_hook(note(block.name)))
                call(network, example)
        except Exception:  # noqa: BLE001 - a counter cannot follow every network
            flops_so_far = {}
        whole = counter.get_total_flops()
        if not whole or len(flops_so_far) < len(blocks):
            return [1 - (number + 1) / len(blocks) for number in range(len(blocks))]
        return [1 - flops_so_far[block.name] / whole for block in blocks]

    def that_reach_the_output(self, blocks: Sequence[Block], example: Batch) -> list[Block]:
        """Return the blocks without those whose first output leads nowhere: an attachment there would change nothing.

        Only blocks with several outputs are asked, or all of a network with several, by the gradients of one more pass.
        Where these tell of none, all blocks are returned.
        """
        several = self.calls[""].has_more
        # Of recurrent layers an attachment changes the last states, too.
        asked = [
            block
            for block in blocks
            if (several or self.calls[block.name].has_more) and not isinstance(block.module, nn.RNNBase)
        ]
        if not asked:
            return list(blocks)
        additions: dict[str, Tensor] = {}

        def add_zero(name: str) -> Any:
            def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
                main = first_tensor(output)
                assert main is not None
                additions[name] = torch.zeros_like(main, requires_grad=True)
                total = main + additions[name]
                return total if isinstance(output, Tensor) else with_items(output, (total, *output[1:]))

            return hook

        network = self.modules[""]
        try:
            with _hooking(network) as hooks, torch.enable_grad():
                for block in asked:
                    hooks.enter_context(block.module.register_forward_hook(add_zero(block.name)))
                logits = logits_of(call(network, example))
                assert logits is not None
                gradients = torch.autograd.grad(logits.sum(), [*additions.values()], allow_unused=True)
        except Exception:  # noqa: BLE001 - not every network can have gradients
            return list(blocks)
        unreached = {name for name, gradient in zip(additions, gradients) if gradient is None}
        return [block for block in blocks if block.name not in unreached] or list(blocks)

    def blocks(self, at: str | Sequence[str] | None = None) -> list[Block]:
        """Return the network's blocks in the order of their calls.

        at  names of modules, or patterns; None: all blocks that are found
        """
        names = self._find() if at is None else self._pick([at] if isinstance(at, str) else list(at))
        return [self._block(name) for name in sorted(names, key=lambda name: self.calls[name].order)]

    def _usable(self, name: str) -> bool:
        """Return whether a module can carry an attachment: called once, one tensor in and one out, batch first."""
        call = self.calls.get(name)
        return (
            name != ""
            and call is not None
            and call.count == 1
            and call.input is not None
            and call.output is not None
            and len(call.input) >= 2
            and len(call.output) >= 2
            and call.input[0] == call.output[0] == self.batch
            and getattr(self.modules[name], "batch_first", True)
        )

    def _find(self) -> list[str]:
        """Return the names of all blocks, or raise an error if there are none.

        What is called after the layer that makes the output is of another output, and changes nothing in this one.
        """
        usable = [name for name in self.modules if self._usable(name) and self.calls[name].order <= self.end]
        kinds: dict[type, list[str]] = {}
        for name in usable:
            module = self.modules[name]
            if type(module) not in CONTAINERS and any(True for _ in module.children()):
                kinds.setdefault(type(module), []).append(name)
        # A block is an instance of a class that occurs several times and holds at least two weights.
        blocks = {
            name: kind
            for kind, names in kinds.items()
            if len(names) > 1 and max(_weight_count(self.modules[name]) for name in names) > 1
            for name in names
        }
        stages = {kind for name, kind in blocks.items() if self._is_stage(name, blocks)}
        blocks = {name: kind for name, kind in blocks.items() if kind not in stages}
        outermost = [name for name in blocks if not any(name.startswith(f"{other}.") for other in blocks)]
        if outermost:
            return outermost
        layers = [name for name in usable if isinstance(self.modules[name], (nn.Linear, nn.RNNBase, *CONVOLUTIONS))]
        if not layers:
            if not any(self.calls):
                actual = f"{type(self.modules['']).__name__}, which calls no modules inside"
                accepted = "a network with modules in it, beside which attachments can be placed"
                raise AttachError(explain("backbone", actual, accepted, "Wrap a single layer: nn.Sequential(layer)."))
            raise AttachError(
                "backbone: got a network in which no block was found; accepted: a network with repeated blocks, or "
                "with linear or convolutional layers that are called once per pass, batch first. Name the places "
                f"yourself with at=[...]; called modules: {_some(self.calls)}."
            )
        layers.sort(key=lambda name: self.calls[name].order)
        layers = layers[:-1] or layers  # the last layer makes the logits; attachments go before it where they can
        return [name for name in layers if isinstance(self.modules[name], (nn.RNNBase, *CONVOLUTIONS))] or layers

    def _is_stage(self, name: str, blocks: dict[str, type]) -> bool:
        """Return whether a module holds several blocks of one class in a row: then these count, not the module."""
        for child_name, child in self.modules[name].named_modules(prefix=name):
            if isinstance(child, nn.Sequential | nn.ModuleList):
                kinds = [blocks[path] for path in (f"{child_name}.{key}" for key in child._modules) if path in blocks]
                if len(kinds) > len(set(kinds)):
                    return True
        return False

    def _pick(self, patterns: list[str]) -> list[str]:
        """Return the names that match, or raise an error for a pattern without a usable match."""
        choice: list[str] = []
        if not patterns:
            raise AttachError(explain("at", "no names", "names of modules, or None to find the blocks"))
        for pattern in patterns:
            matches = [name for name in self.modules if name and _matches(name, pattern)]
            if not matches:
                close = difflib.get_close_matches(pattern, [name for name in self.modules if name], n=3)
                hint = f"Close names: {', '.join(close)}" if close else f"Some names: {_some(self.calls)}"
                raise AttachError(
                    explain("at", repr(pattern), "names of modules, or patterns such as 'layer4.*'", f"{hint}.")
                )
            for name in matches:
                if not self._usable(name):
                    why = f"{name!r}, which cannot carry an attachment: {self._why_not(name)}"
                    raise AttachError(explain("at", why, "modules that map one tensor to one", "Leave it out."))
            choice.extend(name for name in matches if name not in choice)
        for name in choice:
            for other in choice:
                if name.startswith(f"{other}."):
                    raise AttachError(f"at: {other!r} contains {name!r}; attach to one of the two.")
        return choice

    def _why_not(self, name: str) -> str:
        """Return why a module cannot carry an attachment."""
        call = self.calls.get(name)
        if call is None:
            return "it is never called in a pass of the network (a container only holds others; name what it holds)"
        if call.count > 1:
            return f"it is called {call.count} times in one pass, and an attachment belongs to one call"
        return f"its input {call.input} and output {call.output} are not single tensors with the batch first"

    def _block(self, name: str) -> Block:
        call = self.calls[name]
        assert call.input is not None and call.output is not None
        module = self.modules[name]
        return Block(name, module, call.input, call.output, _layout(module, call.input, call.output))


def probe(network: nn.Module, example: Batch) -> Probe:
    """Return which modules are called in a pass of ``example`` in eval mode, in which order and with which shapes."""
    calls: dict[str, _Call] = {}
    modules = dict(network.named_modules())
    largest = order = 0
    made: dict[str, Tensor] = {}  # by linear layers, one row for each input

    def before(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            nonlocal order
            first = args[0] if args else next(iter(kwargs.values()), None)
            shape = tuple(first.shape) if isinstance(first, Tensor) else None
            if name in calls:
                calls[name].count += 1
            else:
                calls[name] = _Call(1, order, shape, None)
                order += 1

        return hook

    def after(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            nonlocal largest
            tensor = first_tensor(output) if name else logits_of(output)
            if tensor is not None:
                calls[name].output = tuple(tensor.shape)
                calls[name].has_more = isinstance(output, tuple | list) and len(output) > 1
                read = sum(value.numel() for value in args if isinstance(value, Tensor))
                largest = max(largest, read + tensor.numel())
                if isinstance(module, nn.Linear) and tensor.ndim == 2:
                    made[name] = tensor

        return hook

    try:
        with _hooking(network) as hooks, torch.no_grad():
            for name, module in modules.items():
                hooks.enter_context(module.register_forward_pre_hook(before(name), with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(after(name)))
            logits = logits_of(call(network, example))
    except OUT_OF_MEMORY:
        raise
    except Exception as error:
        raise InputError(
            explain(
                "example",
                f"{_form(example)}, on which the backbone fails: {summary(error)}",
                "an input that the backbone takes",
                "Check that backbone(example) works, backbone(**example) for a dict: rank, channels, size, dtype and "
                "device.",
            )
        ) from error
    heads = [name for name, tensor in made.items() if logits is not None and _is_same(tensor, logits)]
    heads = [] if _OF_ANY_OUTPUT.get() else heads
    return Probe(calls, modules, len(example), -(-largest // len(example)), logits, frozenset(heads))


@contextlib.contextmanager
def of_any_output(yes: bool = True) -> Iterator[None]:
    """Inside, a network is probed as models of several outputs were before: no layer is known to make the first one."""
    token = _OF_ANY_OUTPUT.set(yes)
    try:
        yield
    finally:
        _OF_ANY_OUTPUT.reset(token)


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors that both exist are one, also where one of them is a view of the other."""
    return one.shape == other.shape and one.data_ptr() == other.data_ptr()


@contextlib.contextmanager
def _hooking(network: nn.Module) -> Iterator[contextlib.ExitStack]:
    """Inside, the network is in eval mode and calls all its modules. Hooks that the stack gets are taken off at the end."""
    with contextlib.ExitStack() as hooks, evaluating(network), without_shortcuts(network):
        yield hooks


def find_readout(structure: Probe, classes: int) -> Block | None:
    """Return the last linear layer that is called, or None if it does not turn one vector per input into the output.

    Of a network with several outputs, layers that are called after the one that makes the first output do not count.
    """
    linear = [name for name in structure.calls if isinstance(structure.modules[name], nn.Linear)]
    linear = [name for name in linear if structure.calls[name].order <= structure.end]
    name = max(linear, key=lambda name: structure.calls[name].order, default=None)
    if name is None:
        return None
    call = structure.calls[name]
    if call.count > 1 or call.input is None or len(call.input) != 2 or call.output != (structure.batch, classes):
        return None
    return Block(name, structure.modules[name], call.input, call.output, "flat")


def check_example(network: nn.Module, example: object) -> Any:
    """Return the example as a batch for a probing pass, or raise an error that says what is wrong with it."""
    if isinstance(example, Mapping | tuple | list):
        example = read(example, "example")[0]
    if not isinstance(example, Tensor | Inputs):
        accepted = "one or more inputs: a tensor, or several as a dict or tuple"
        raise InputError(explain("example", type(example).__name__, accepted, "Pass for instance x[:1]."))
    if isinstance(example, Inputs):
        check_tied(example, "example")
    if example.ndim < 2 or len(example) < 1:
        shape = tuple(example.shape)
        raise InputError(explain("example", f"shape {shape}", "a batch of at least one input", "Pass x[:1], not x[0]."))
    weight = next(network.parameters(), None)
    if weight is not None and weight.is_meta:
        fix = "Load its weights first."
        raise InputError(explain("backbone", "a network on the meta device", "a network with weights", fix))
    if weight is not None and weight.device != example.device:
        raise InputError(
            explain(
                "example",
                f"a tensor on {example.device}",
                f"the backbone's device, {weight.device}",
                "Move one of them with .to(device).",
            )
        )
    parts = example.tensors() if isinstance(example, Inputs) else [example]
    if any(each.is_floating_point() and not bool(torch.isfinite(each).all()) for each in parts):
        raise InputError(explain("example", "NaN or infinite values", "finite values", "Clean the input first."))
    return example


def _form(example: Batch) -> str:
    return repr(example) if isinstance(example, Inputs) else f"shape {tuple(example.shape)} and dtype {example.dtype}"


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name is the pattern, or matches it part by part between dots."""
    if name == pattern:
        return True
    parts, pattern_parts = name.split("."), pattern.split(".")
    return len(parts) == len(pattern_parts) and all(
        fnmatch.fnmatchcase(part, want) for part, want in zip(parts, pattern_parts)
    )


def _weight_count(module: nn.Module) -> int:
    """Return how many parameters have two dimensions or more: biases and norms do not count."""
    return sum(parameter.ndim >= 2 for parameter in module.parameters())


def _layout(module: nn.Module, shape: tuple[int, ...], output: tuple[int, ...]) -> str:
    """Return where the features of a module's tensors are, see :class:`Block`."""
    if len(shape) == len(output) == 2:
        return "flat"
    if isinstance(module, nn.RNNBase):
        return "tokens"
    # Tokens may meet convolutions inside a block too, but not with the tokens as their channels.
    for part in module.modules():
        if isinstance(part, CONVOLUTIONS) and len(part.kernel_size) + 2 == len(shape) and part.in_channels == shape[1]:
            return "channels"
    widths = {
        part.in_features if isinstance(part, nn.Linear) else part.normalized_shape[-1]
        for part in module.modules()
        if isinstance(part, nn.Linear | nn.LayerNorm)
    }
    if shape[-1] not in widths:
        return "channels"
    if len(shape) == len(output):
        return "tokens"
    return "pooled tokens" if len(shape) == 3 and len(output) == 2 else "channels"


def _some(names: dict[str, Any], most: int = 12) -> str:
    """Return the first few names for an error message."""
    texts = [name for name in names if name]
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")
