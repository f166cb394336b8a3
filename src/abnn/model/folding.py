"""Where draws can be folded into the batch: a trial with three inputs and two draws, compared with one at a time."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.noise import Noise, map_noise, pick_draws, seeded_noise
from abnn.errors import AbnnWarning, AttachError
from abnn.model.attached_blocks import ReplacedBlock, WatchedBlock
from abnn.model.calls import OUT_OF_MEMORY, evaluating, summary
from abnn.model.graft import StandIn
from abnn.model.inputs import MASK, TIED, Batch, Inputs, rows_of
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass

COARSE = 1e-4  # relative rounding; only half precision is coarser


def choose_fold(model: AttachedNetwork, example: Batch) -> None:
    """Fold draws at the first attachment if the output is that of separate draws, else at the network's input."""
    inputs = _three_inputs(example)
    with torch.no_grad(), _explained():
        # The noise is so large that any mix-up of draws or inputs shows.
        noise = map_noise(seeded_noise(model.layers, range(2), 0), lambda part: (10 * part).to(model.device))
        with _counting_calls(model) as calls:
            reference = _one_by_one(model, noise, inputs)
        _check_reached(calls, 2 * len(inputs))
        with _counting_calls(model) as calls, evaluating(model.net):  # the network itself, not copies of its modules
            model.draw_logits(inputs[:1])
        _check_reached(calls, 1)
        _find_batch_arguments(model, noise, inputs)
        if not reference.isfinite().all():
            raise AttachError(
                "backbone: its output on the example, or on inputs like it, is not finite; accepted: finite logits. "
                "Check its weights."
            )
        first = model.attached_blocks[0]
        first.unfolds = True
        reason = _disagreement(model, noise, inputs, reference)
        if reason is None:
            return
        first.unfolds = False
        problem = _disagreement(model, noise, inputs, reference)
        is_random = problem is not None and _difference(_one_by_one(model, noise, inputs), reference) is not None
    if is_random:
        raise AttachError(
            "backbone: its output is random, two passes of the same input differ in eval mode; accepted: a network "
            "without randomness of its own in eval mode."
        )
    if problem is not None:
        raise AttachError(
            f"backbone: folding draws into the batch changes its output ({problem}). It seems to mix the inputs of a "
            "batch, not to have the batch first, or to keep features of hooks in attributes; accepted: a network that "
            "treats each input of a batch by itself, whose modules pass features on as inputs and outputs."
        )
    if model.comes_along:  # it runs twice and still computes what comes before the attachment once, see Twice
        return
    warnings.warn(
        "This network passes features around the first attachment, so draws are folded at its input and the part "
        f"before the first attachment is computed once per draw ({reason}). Attach to the last blocks, or choose other "
        "places with at=..., to share it.",
        AbnnWarning,
        stacklevel=3,
    )


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Inside, an error of the network becomes one that says that attachments made it fail."""
    try:
        yield
    except (AttachError, *OUT_OF_MEMORY):
        raise
    except Exception as error:
        raise AttachError(
            f"backbone: fails in a trial pass with attachments ({summary(error)}); accepted: a network whose modules "
            "pass features on as inputs and outputs. Replace hooks that keep features in attributes, and what else "
            "one module stores for another."
        ) from error


def _three_inputs(example: Batch) -> Any:
    """Return three different inputs like the example; where it is constant, any values must do.

    With a mask, the second and the third sentence are shorter: a network may skip a mask that hides nothing.
    """
    if isinstance(example, Inputs):
        three = {name: each if name in TIED else _three_inputs(each) for name, each in example[:1].values.items()}
        three |= {name: torch.cat([each] * 3) for name, each in three.items() if name in TIED}
        if MASK in three and three[MASK].shape[-1] > 2:
            three[MASK] = three[MASK].clone()
            three[MASK][1:, -1], three[MASK][2:, -2] = 0, 0
        return Inputs(three)
    one = example[:1]
    if one.ndim == 1:
        return torch.cat([one] * 3)
    inputs = torch.cat([one, one.roll(1, -1), one.flip(-1)])
    if inputs.is_floating_point():
        spread = inputs.std()
        inputs = inputs + torch.randn(inputs.shape).to(inputs) * (0.1 * spread if spread > 0 else 1.0)
    return inputs


@contextlib.contextmanager
def _counting_calls(model: AttachedNetwork) -> Iterator[dict[str, int]]:
    """Inside, the dict counts the calls of everything that took a module's place and does something there, by name."""
    stand_ins = {name: part for name, part in model.net.named_modules() if isinstance(part, StandIn | ReplacedBlock)}
    calls = {
        name: 0
        for name, part in stand_ins.items()
        if name in model.block_names or not isinstance(part, WatchedBlock) or part.is_place
    }

    def count(name: str) -> Any:
        def hook(*_: Any) -> None:
            calls[name] += 1

        return hook

    with contextlib.ExitStack() as hooks:
        for name in calls:
            hooks.enter_context(stand_ins[name].register_forward_hook(count(name)))
        yield calls


def _find_batch_arguments(model: AttachedNetwork, noise: Noise, inputs: Batch) -> None:
    """Set ``batch_arguments`` of all blocks: the further arguments that have more rows for more inputs, and how many
    rows for each."""
    blocks = [block for block in model.net.modules() if isinstance(block, WatchedBlock)]
    shapes: dict[int, list[dict[int | str, torch.Size]]] = {index: [] for index in range(len(blocks))}

    def note_shapes(index: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            values: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
            shapes[index].append({place: each.shape for place, each in values if isinstance(each, Tensor)})

        return hook

    single = Pass(model, pick_draws(noise, slice(1)), plain=False)
    try:
        with contextlib.ExitStack() as hooks:
            for index, block in enumerate(blocks):
                hooks.enter_context(block.register_forward_pre_hook(note_shapes(index), with_kwargs=True))
            single(inputs[-1:])
            single(inputs)
    except OUT_OF_MEMORY:
        raise
    except Exception:  # noqa: BLE001 - a network that takes one input at a time is refused later, with its reason
        return
    for index, block in enumerate(blocks):
        one, three = shapes[index]
        first = next(iter(one))
        longer = (each for each in one if each in three and one[each][:1] != three[each][:1])
        block.batch_arguments = {each: one[each][0] for each in longer if each != first}


def _check_reached(calls: dict[str, int], expected: int) -> None:
    """Raise an error if the network calls modules through other references, so that what took their place would do
    nothing."""
    for name, count in calls.items():
        if not count or count % expected:
            raise AttachError(
                f"backbone: its pass does not reach {name!r} through its submodules; accepted: a network that calls "
                "its blocks as attributes, nn.Sequential, nn.ModuleList or nn.ModuleDict. Replace plain lists or saved "
                "references to modules, and attach before torch.compile: torch.compile(abnn.attach(...))."
            )


def _one_by_one(model: AttachedNetwork, noise: Noise, inputs: Batch) -> Tensor:
    """Return the outputs of passes with one draw and one input each, [2, B, ...]."""
    outputs = []
    for index in range(2):
        single = Pass(model, pick_draws(noise, slice(index, index + 1)), plain=False)
        outputs.append(torch.cat([single(inputs[i : i + 1]) for i in range(len(inputs))], dim=1))
    return torch.cat(outputs)


def _disagreement(model: AttachedNetwork, noise: Noise, inputs: Batch, reference: Tensor) -> str | None:
    """Return how folded draws differ from the reference, or None if they agree up to rounding."""
    try:
        folded = Pass(model, noise, plain=False)(inputs)
    except OUT_OF_MEMORY:
        raise
    except Exception as error:  # noqa: BLE001 - any failure of the user's network means the same here
        return summary(error)
    difference = _difference(folded, reference)
    if difference is None or torch.finfo(reference.dtype).eps < COARSE or folded.shape != reference.shape:
        return difference
    # Rounding adds up over the layers, in bfloat16 to 14 % on a ResNet-50. In passes of one size, all rows are rounded
    # in the same way.
    is_mixed_up = _gap(folded, _all_the_same(model, noise, inputs), reference) > 4 * torch.finfo(reference.dtype).eps
    return difference if is_mixed_up or not _is_in_order(folded, reference) else None


def _all_the_same(model: AttachedNetwork, noise: Noise, inputs: Batch) -> Tensor:
    """Return outputs of folded passes whose rows all are of one draw and one input: nothing can be mixed up there."""
    rows = []
    for draw in range(2):
        alone = Pass(
            model,
            map_noise(pick_draws(noise, slice(draw, draw + 1)), lambda part: torch.cat([part] * 2, 1)),
            plain=False,
        )
        for index in range(len(inputs)):
            same = rows_of(inputs, lambda part: torch.cat([part[index : index + 1]] * len(part)))  # noqa: B023
            rows.append(alone(same)[draw, index])
    return torch.stack(rows).unflatten(0, (2, -1))


def _difference(folded: Tensor, reference: Tensor) -> str | None:
    """Return how outputs differ by more than rounding, or None."""
    if folded.shape != reference.shape:
        return f"output shape {tuple(folded.shape)} instead of {tuple(reference.shape)}"
    gap = _gap(folded, reference, reference)
    # Rounding adds up over the layers. In float32 on CUDA, where convolutions round to ten bits, it makes 1.3 % on an
    # EfficientNet. A mix-up changes everything.
    most = max(5e-2 if reference.is_cuda else 1e-2, 16 * torch.finfo(reference.dtype).eps)
    return None if gap < most else f"outputs differ by {gap:.1%}"


def _gap(one: Tensor, other: Tensor, reference: Tensor) -> float:
    """Return the largest difference, in units of what draws and inputs change.

    So a large constant in the logits cannot hide a mix-up.
    """
    spread = (reference - reference.mean(dim=(0, 1))).abs().max()
    scale = torch.maximum(spread, 0.1 * reference.abs().max()).clamp_min(1e-6)
    return ((one - other).abs().max() / scale).item()


def _is_in_order(folded: Tensor, reference: Tensor) -> bool:
    """Return whether no other order of draws and inputs is nearer to the reference."""
    draws, count = reference.shape[:2]
    orders = itertools.product(itertools.permutations(range(draws)), itertools.permutations(range(count)))
    distances = [(folded[list(one)][:, list(other)] - reference).float().norm() for one, other in orders]
    return bool(distances[0] <= min(distances))  # the first order is the one as it is
