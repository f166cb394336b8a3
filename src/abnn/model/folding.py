"""Where draws can be folded into the batch: tried on three inputs and two draws, against one at a time."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from abnn.bayes.noise import hold_noise, holding, some_of
from abnn.errors import AbnnWarning, AttachError
from abnn.model.attached import Attached
from abnn.model.blocks import evaluating, summary


def choose_fold(model: Attached, example: Tensor) -> None:
    """Fold draws at the first attachment if that gives what separate draws give, else at the network's input."""
    inputs = _three_inputs(example)
    with torch.no_grad(), evaluating(model.net):
        model.resample(2, seed=0)
        for layer in model.layers:  # noise large enough that any mix-up of draws or inputs shows
            layer.weight_noise.mul_(10)
        with _calls_counted(model) as calls:
            reference = _one_by_one(model, inputs)
        _check_reached(model, calls, model.draws * len(inputs))
        if not reference.isfinite().all():
            raise AttachError(
                "backbone: its output on the example, or on inputs like it, is not finite; accepted: finite logits. "
                "Check its weights."
            )
        first = model.attached_blocks[0]
        first.unfolds = True
        reason = _disagreement(model, inputs, reference)
        if reason is None:
            return
        first.unfolds = False
        trouble = _disagreement(model, inputs, reference)
        chance = trouble is not None and _difference(_one_by_one(model, inputs), reference) is not None
    if chance:
        raise AttachError(
            "backbone: its output is random, two passes of the same input differ in eval mode; accepted: a network "
            "without randomness of its own in eval mode."
        )
    if trouble is not None:
        raise AttachError(
            f"backbone: folding draws into the batch changes its output ({trouble}). It seems to mix the inputs of a "
            "batch or not to have the batch first; accepted: a network that treats each input of a batch by itself."
        )
    warnings.warn(
        "This network passes features around the first attachment, so draws are folded at its input and the part "
        f"before the first attachment is computed once per draw ({reason}). Attach to the last blocks, or choose other "
        "places with at=..., to share it.",
        AbnnWarning,
        stacklevel=3,
    )


def _three_inputs(example: Tensor) -> Tensor:
    """Three different inputs like the example; it may be constant, then any values must do."""
    one = example[:1]
    inputs = torch.cat([one, one.roll(1, -1), one.flip(-1)])
    if inputs.is_floating_point():
        spread = inputs.std()
        inputs = inputs + torch.randn(inputs.shape).to(inputs) * (0.1 * spread if spread > 0 else 1.0)
    return inputs


@contextlib.contextmanager
def _calls_counted(model: Attached) -> Iterator[list[int]]:
    calls = [0] * len(model.attached_blocks)

    def count(index: int) -> Any:
        def hook(*_: Any) -> None:
            calls[index] += 1

        return hook

    handles = [block.register_forward_hook(count(index)) for index, block in enumerate(model.attached_blocks)]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _check_reached(model: Attached, calls: list[int], expected: int) -> None:
    """A network may hold its blocks a second time, outside its submodules; then attachments would do nothing."""
    for name, count in zip(model.block_names, calls):
        if count != expected:
            raise AttachError(
                f"backbone: its pass does not reach {name!r} through its submodules; accepted: a network that calls its "
                "blocks as attributes, nn.Sequential, nn.ModuleList or nn.ModuleDict. Replace plain lists or saved "
                "references to modules, and attach before torch.compile: torch.compile(abnn.attach(...))."
            )


def _one_by_one(model: Attached, inputs: Tensor) -> Tensor:
    held = hold_noise(model.layers)
    outputs = []
    for index in range(model.draws):
        with holding(model.layers, some_of(held, slice(index, index + 1))):
            outputs.append(torch.cat([model.draw_logits(inputs[i : i + 1]) for i in range(len(inputs))], dim=1))
    return torch.cat(outputs)


def _disagreement(model: Attached, inputs: Tensor, reference: Tensor) -> str | None:
    try:
        folded = model.draw_logits(inputs)
    except Exception as error:  # noqa: BLE001 - any failure of the user's network means the same here
        return summary(error)
    return _difference(folded, reference)


def _difference(folded: Tensor, reference: Tensor) -> str | None:
    if folded.shape != reference.shape:
        return f"output shape {tuple(folded.shape)} instead of {tuple(reference.shape)}"
    # Against what draws and inputs change, for a large constant in the logits must not hide a mix-up.
    spread = (reference - reference.mean(dim=(0, 1))).abs().max()
    scale = torch.maximum(spread, 0.1 * reference.abs().max()).clamp_min(1e-6)
    gap = ((folded - reference).abs().max() / scale).item()
    most = max(1e-2, 8 * torch.finfo(reference.dtype).eps)  # bfloat16 rounds by nearly a percent in every layer
    return None if gap < most else f"outputs differ by {gap:.1%}"
