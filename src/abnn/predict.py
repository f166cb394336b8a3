"""From inputs to predictions: average the draws, and keep what is needed for every score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from abnn.blocks import evaluating, summary
from abnn.errors import InputError, NotFittedError, explain, unknown
from abnn.scores import DISTANCE_SCORES, SAMPLE_SCORES, SCORES, entropy, gated

if TYPE_CHECKING:
    from abnn.attached import Attached

MEMORY_LIMIT = 2**30


@dataclass(frozen=True)
class Prediction:
    """What the model says about a batch.

    samples   class probabilities of every draw, [S, B, K]
    distance  distance of the features from the training data, [B], if statistics were gathered
    gate      where the gated score starts to count the distance, and where it stops
    default   the name of the score that ``score`` shows
    own       scores that only the method at hand can give, by name, each [B], larger = more uncertain
    """

    samples: Tensor
    distance: Tensor | None = None
    gate: tuple[float, float] | None = None
    default: str = "entropy"
    own: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def probs(self) -> Tensor:
        """The prediction averaged over the draws, [B, K]."""
        return self.samples.mean(0)

    @property
    def label(self) -> Tensor:
        """The most probable class of the averaged prediction, [B]."""
        return self.probs.argmax(-1)

    @property
    def score(self) -> Tensor:
        """Larger = more uncertain, [B]."""
        return self.score_by(self.default)

    def score_by(self, name: str) -> Tensor:
        """Any of abnn.scores.SCORES, or of the method's own, by its name, [B]."""
        if name in self.own:
            return self.own[name]
        if name in SAMPLE_SCORES:
            return SAMPLE_SCORES[name](self.samples)
        if name not in DISTANCE_SCORES:
            raise unknown("score", name, (*SCORES, *self.own))
        if self.distance is None or self.gate is None:
            raise NotFittedError(
                f"score: {name!r} needs the statistics of the training data, which abnn.fit() gathers; "
                f"without them use one of {', '.join(SAMPLE_SCORES)}."
            )
        if name == "distance":
            return self.distance
        low, high = (torch.as_tensor(value, device=self.distance.device) for value in self.gate)
        return gated(entropy(self.samples), self.distance, low, high)

    def __len__(self) -> int:
        return self.samples.shape[1]


def concatenate(parts: list[Prediction]) -> Prediction:
    """Several batches as one."""
    distances = [part.distance for part in parts if part.distance is not None]
    return Prediction(
        torch.cat([part.samples for part in parts], dim=1),
        torch.cat(distances) if distances else None,
        parts[0].gate,
        parts[0].default,
        {name: torch.cat([part.own[name] for part in parts]) for name in parts[0].own},
    )


class Plain:
    """A network as it is, with the same ``predict`` as an attached one: a single draw, no distance.

    For comparisons: everything that scores, calibrates or evaluates attached models takes one of these too.
    """

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        self.network = network
        self.input_shape = tuple(example.shape[1:])
        self.input_dtype = example.dtype
        self.score = "entropy"
        with torch.no_grad(), evaluating(network):
            self.classes: int = network(example[:1]).shape[1]

    def predict(self, x: Any, draws: int = 1, seed: int | None = 0, score: str | None = None) -> Prediction:
        """The network's one prediction; ``draws`` and ``seed`` are accepted for the sake of the common form."""
        x = check_inputs(self, x)
        device = next((parameter.device for parameter in self.network.parameters()), x.device)
        with torch.inference_mode(), evaluating(self.network):
            probs = self.network(x.to(device)).float().softmax(1)
        return Prediction(probs[None].clone(), default=score or self.score)


def predict(
    model: Attached,
    x: Any,
    draws: int = 10,
    seed: int | None = 0,
    score: str | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> Prediction:
    """Predict ``x`` with ``draws`` weight draws.

    x             one batch: a tensor or array of the shape that the model was attached with, on any device
    seed          the draws belong to the seed alone: an input gets the same result, up to rounding, whatever batch it
                  comes in. None: fresh draws, from torch's global random state
    score         the score that ``Prediction.score`` shows; default: the model's, "gated" once statistics were
                  gathered, else "entropy"
    memory_limit  bytes that activations may take; inputs and draws are processed in chunks that stay below
    """
    from abnn.attached import check_draws, hold_noise, set_noise

    check_draws(draws)
    x = check_inputs(model, x)
    has_distance = bool(model.distance.fitted)
    default = score or (model.score if has_distance or model.score not in DISTANCE_SCORES else "entropy")
    if default not in SCORES:
        raise unknown("score", default, SCORES)
    if not memory_limit > 0:
        raise InputError(explain("memory_limit", memory_limit, "a positive number of bytes"))
    passes = max(1, memory_limit // max(1, 4 * model.activation_bytes))
    batch, chunk = max(1, min(len(x), passes)), max(1, min(draws, passes // max(1, min(len(x), passes))))
    device = next(iter(model.layers)).weight_mean.device
    seed = int(torch.randint(2**62, ())) if seed is None else seed
    held = hold_noise(model)
    parts: list[Tensor] = []
    try:
        with torch.inference_mode(), evaluating(model):
            for first in range(0, draws, chunk):
                model.resample(range(first, min(first + chunk, draws)), seed=seed)
                rows = [_probabilities(model, part.to(device)) for part in x.split(batch)]
                parts.append(torch.cat(rows, dim=1))
            distance = torch.cat([model.distance(p.to(device)) for p in x.split(batch)]) if has_distance else None
    finally:
        set_noise(model, held)
    samples = torch.cat(parts)
    gate = model.distance.gate if has_distance else None
    result = Prediction(samples.clone(), None if distance is None else distance.clone(), gate, default)
    result.score_by(default)  # a score that this model cannot give is an error here, not later
    return result


def _probabilities(model: Attached, x: Tensor) -> Tensor:
    """softmax(z_s) for every held draw, [S, B, K]."""
    try:
        logits = model.draw_logits(x)
    except RuntimeError as error:
        if tuple(x.shape[1:]) == model.input_shape:
            raise
        wanted = f"inputs of shape {model.input_shape}, as the model was attached with, or others that it can take"
        given = f"inputs of shape {tuple(x.shape[1:])}, on which the network fails: {summary(error)}"
        raise InputError(explain("x", given, wanted)) from error
    if logits.ndim != 3 or logits.shape[2] < 2:
        given = f"a network with outputs of shape {tuple(logits.shape[2:])} for each input"
        raise InputError(explain("model", given, "one logit for each of two or more classes"))
    return logits.float().softmax(2)


def check_inputs(model: Attached | Plain, x: Any, values: bool = True) -> Tensor:
    """A batch as a tensor, or an error that says how it differs from what the model was attached with.

    Without ``values``, only type and shape are looked at.
    """
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(x)
    if not isinstance(x, Tensor):
        raise InputError(
            explain(
                "x", type(x).__name__, "a tensor or array with one batch of inputs", "Pass one batch, not a loader."
            )
        )
    shape, expected = tuple(x.shape), model.input_shape
    wanted = f"shape (batch, {', '.join(map(str, expected))})"
    if x.ndim != len(expected) + 1:
        fix = "Add a batch dimension with x[None]." if shape == expected else "Check the rank."
        raise InputError(explain("x", f"shape {shape}", wanted, fix))
    if len(expected) > 0 and not _compatible(shape[1:], expected):
        raise InputError(explain("x", f"shape {shape}", wanted, "Check channels and the order of dimensions."))
    if len(x) == 0:
        raise InputError(explain("x", "an empty batch", "at least one input"))
    if x.is_floating_point() != model.input_dtype.is_floating_point:
        raise InputError(
            explain("x", f"dtype {x.dtype}", f"dtype {model.input_dtype}", "Scale and convert it as in training.")
        )
    if x.is_floating_point():
        if values and not torch.isfinite(x).all():
            bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero().flatten().tolist()
            rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            raise InputError(
                explain("x", f"NaN or infinite values in rows {rows}", "finite values", "Clean the input.")
            )
        x = x.to(model.input_dtype)
    return x


def _compatible(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Flat inputs must match; images may have another size than the example, but not other channels."""
    return shape == expected if len(expected) == 1 else shape[0] == expected[0]
