"""From inputs to predictions: average the draws, and keep what is needed for every score."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from abnn.errors import InputError, NotFittedError, explain, unknown, whole_seed
from abnn.model.blocks import evaluating, logits_of
from abnn.model.distance import Gate
from abnn.model.views import can_move, check_views, views_of
from abnn.predict.chunks import MEMORY_LIMIT, plan  # noqa: F401 - the limit is known by this name
from abnn.predict.passes import moved, one_pass
from abnn.scores.formulas import DISTANCE_SCORES, SAMPLE_SCORES, SCORES, entropy, gated, margin

if TYPE_CHECKING:
    from abnn.model.attached import Attached


@dataclass(frozen=True)
class Prediction:
    """What the model says about a batch.

    samples   class probabilities of every draw, [S, B, K]
    distance  distance of the features from the training data, [B], if statistics were gathered
    misfit    how badly the features fit to each class, [B, K], likewise
    gate      what is usual for both
    default   the name of the score that ``score`` shows
    own       scores that only the method at hand can give, by name, each [B], larger = more uncertain
    views     how many views of each image the draws looked at; None: not known
    """

    samples: Tensor
    distance: Tensor | None = None
    misfit: Tensor | None = None
    gate: Gate | None = None
    default: str = "entropy"
    own: Mapping[str, Tensor] = field(default_factory=dict)
    views: int | None = None

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
        """Any of abnn.scores.SCORES, or of the method's own, by its name, [B]; infinite where it, or a probability, is NaN."""
        score = self._score_by(name)
        return score.masked_fill(score.isnan() | self.probs.isnan().any(-1), torch.inf)

    def _score_by(self, name: str) -> Tensor:
        if name in self.own:
            return self.own[name]
        if name in SAMPLE_SCORES:
            return SAMPLE_SCORES[name](self.samples)
        if name not in DISTANCE_SCORES:
            raise unknown("score", name, (*SCORES, *self.own))
        if self.distance is None:
            raise without_statistics(name)
        if name == "distance":
            return self.distance
        if self.misfit is None or self.gate is None:
            raise without_statistics(name)
        return gated(margin(self.samples), entropy(self.samples), self.distance, self.own_misfit, self.gate)

    @property
    def own_misfit(self) -> Tensor:
        """How badly the features fit to the predicted class, [B]."""
        if self.misfit is None:
            raise without_statistics("misfit")
        return self.misfit.gather(1, self.label[:, None])[:, 0]

    def apply(self, change: Callable[[Tensor], Tensor]) -> Prediction:
        """The same with every tensor changed: moved, cloned."""
        distance, misfit = (None if each is None else change(each) for each in (self.distance, self.misfit))
        own = {name: change(value) for name, value in self.own.items()}
        return replace(self, samples=change(self.samples), distance=distance, misfit=misfit, own=own)

    def __len__(self) -> int:
        return self.samples.shape[1]


def concatenate(parts: list[Prediction]) -> Prediction:
    """Several batches as one."""
    distances = [part.distance for part in parts if part.distance is not None]
    misfits = [part.misfit for part in parts if part.misfit is not None]
    return Prediction(
        torch.cat([part.samples for part in parts], dim=1),
        torch.cat(distances) if distances else None,
        torch.cat(misfits) if misfits else None,
        parts[0].gate,
        parts[0].default,
        {name: torch.cat([part.own[name] for part in parts]) for name in parts[0].own},
        parts[0].views,
    )


class Plain:
    """A network as it is, with the same ``predict`` as an attached one: a single draw, no distance.

    For comparisons: everything that scores, calibrates or evaluates attached models takes one of these too.

    example  one or a few inputs, on any device
    """

    def __init__(self, network: nn.Module, example: Tensor) -> None:
        self.network = network
        self.input_shape = tuple(example.shape[1:])
        self.input_dtype = example.dtype
        self.score = "entropy"
        with torch.no_grad(), evaluating(network):
            self.classes: int = self._logits(example[:1].to(device_of(network, example.device))).shape[1]

    def predict(self, x: Any, draws: int = 1, seed: int | None = 0, score: str | None = None) -> Prediction:
        """The network's one prediction; ``draws`` and ``seed`` are accepted for the sake of the common form."""
        x = check_inputs(self, x)
        with torch.inference_mode(), evaluating(self.network):
            probs = self._logits(x.to(device_of(self.network, x.device))).float().softmax(1)
        return Prediction(probs[None].clone(), default=score or self.score)

    def _logits(self, x: Tensor) -> Tensor:
        logits = logits_of(self.network(x))
        if logits is None:
            raise InputError(
                explain("network", "one whose output has no tensor", "one that returns logits", "Wrap it.")
            )
        return logits


def device_of(network: nn.Module, otherwise: torch.device) -> torch.device:
    """Where the network's weights are; ``otherwise`` for one without."""
    return next((parameter.device for parameter in network.parameters()), otherwise)


def predict(
    model: Attached,
    x: Any,
    draws: int = 10,
    seed: int | None = 0,
    score: str | None = None,
    memory_limit: int | None = None,
    replay: bool = True,
    views: int | None = None,
) -> Prediction:
    """Predict ``x`` with ``draws`` weight draws. From several threads, predictions of one model take turns.

    x             one batch: a tensor or array of the shape that the model was attached with, on any device
    seed          the draws belong to the seed alone: an input gets the same result, up to rounding, whatever batch it
                  comes in. None: fresh draws, from torch's global random state
    score         the score that ``Prediction.score`` shows; default: the model's, "gated" once statistics were
                  gathered, else "entropy"
    memory_limit  bytes that activations may take; inputs and draws are processed in chunks that stay below, see
                  :mod:`abnn.predict.chunks`. None: 1 GiB, on CUDA a sixteenth of the device's memory
    views         how many views of each image the draws look at, see :mod:`abnn.model.views`; 1: the image as it is. None: the
                  model's
    replay        on CUDA, run repeated passes of one shape as one graph, see :mod:`abnn.predict.replay`
    """
    from abnn.model.attached import check_draws

    draws = check_draws(draws)
    assert model.backbone is not None  # an error of its own if the attachments were taken off
    if (dtype := model.layers[0].weight_mean.dtype) != model.weight_dtype:
        fix = "Convert the network before attaching."
        raise InputError(explain("model", f"weights converted to {dtype}", f"{model.weight_dtype}, as attached", fix))
    late = isinstance(x, Tensor) and x.is_cuda
    x = check_inputs(model, x, values=not late)
    look = _Look(x) if late and x.is_floating_point() else None
    gate = model.distance.known_gate()
    default = score or (model.score if gate is not None or model.score not in DISTANCE_SCORES else "entropy")
    if default not in SCORES:
        raise unknown("score", default, SCORES)
    if default in DISTANCE_SCORES and gate is None:
        raise without_statistics(default)
    form = x.shape[1:], x.dtype
    if views is None:
        views = model.views if can_move(*form) else 1  # images may be smaller than the example
    views = min(check_views(views, *form), draws)
    chunks = plan(model, x, draws, memory_limit, views, placed=gate is not None)
    number = int(torch.randint(2**62, ())) if seed is None else whole_seed(seed)
    device = model.layers[0].weight_mean.device
    samples = torch.empty(draws, len(x), model.classes, dtype=torch.float32, device=device)
    places = None if gate is None else torch.empty(len(x), 1 + model.classes, dtype=torch.float32, device=device)
    # Compiled passes find their weights made whatever the number of inputs, for otherwise they would be compiled twice.
    repeated = device.type == "cpu" and (len(chunks.inputs) > 1 or model.compiled is not None)
    with torch.inference_mode(), model.replay.turn(device):
        for wanted in chunks.draws:
            placed = places is not None and wanted.start == 0
            noise = model.kept_draws.get(model.layers, wanted, number, fresh=seed is None, mean=placed)
            seen = views_of(wanted, views)
            run = partial(one_pass, model, noise, placed, seen)
            with model.keeping_weights() if repeated else contextlib.nullcontext():
                for rows in chunks.inputs:
                    if replay and device.type == "cuda":
                        probs, far = model.replay(model.modules(), run, x[rows], noise, placed, seen, model.compiled)
                    else:
                        probs, far = run(moved(x[rows], device))
                    samples[wanted.start : wanted.stop, rows] = probs
                    if places is not None and far is not None:
                        places[rows] = far
    if look is not None:
        look.check()
    if places is None:
        return Prediction(samples, default=default, views=views)
    return Prediction(samples, places[:, 0], places[:, 1:], gate, default, views=views)


def without_statistics(name: str) -> NotFittedError:
    """The error about a score that needs what was not gathered."""
    return NotFittedError(
        f"score: {name!r} needs the statistics of the training data, which abnn.fit() gathers; "
        f"without them use one of {', '.join(SAMPLE_SCORES)}."
    )


def check_inputs(model: Attached | Plain, x: Any, values: bool = True) -> Tensor:
    """A batch as a tensor, or an error that says how it differs from what the model was attached with.

    Without ``values``, only type and shape are looked at.
    """
    if isinstance(x, np.ndarray):
        x = torch.from_numpy(np.ascontiguousarray(x))  # torch knows no negative strides
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
    if values:
        _check_values(x)
    return x.to(model.input_dtype)


def _check_values(x: Tensor) -> None:
    if x.is_floating_point() and not torch.isfinite(x).all():
        bad = (~torch.isfinite(x.flatten(1))).any(1).nonzero().flatten().tolist()
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise InputError(explain("x", f"NaN or infinite values in rows {rows}", "finite values", "Clean the input."))


class _Look:
    """A look at the values of a batch on CUDA that starts before the passes and is read once these have been started.

    The host then waits for the look alone, and is ready for the next batch while the device still computes this one.
    """

    def __init__(self, x: Tensor) -> None:
        self.x = x
        with torch.cuda.device(x.device), torch.no_grad():
            least_and_most = torch.stack(torch.aminmax(x))  # both are NaN if any value is
            self.seen = torch.empty(2, dtype=x.dtype, device="cpu", pin_memory=True)
            self.seen.copy_(least_and_most, non_blocking=True)
            self.done = torch.cuda.current_stream().record_event()

    def check(self) -> None:
        self.done.synchronize()
        if not torch.isfinite(self.seen).all():
            _check_values(self.x)


def _compatible(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Flat inputs must match; images may have another size than the example, but not other channels. Of two dimensions one is
    that of channels or features, which the network knows best, and the other may have another length."""
    if len(expected) == 2:
        return shape[0] == expected[0] or shape[1] == expected[1]
    return shape == expected if len(expected) == 1 else shape[0] == expected[0]
