"""A network with attachments: its blocks, its held draws, its passes."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from abnn.bayes.layers import MeanField, bayesian_layers, kl_of
from abnn.bayes.noise import KeptDraws, draw_seed, hold_noise, parts_of
from abnn.errors import AbnnWarning, AttachError, InputError, at_least_one, explain
from abnn.model.attached_block import AttachedBlock, MeanNetwork, ReplacedBlock
from abnn.model.attachments import Spec, build_attachments
from abnn.model.blocks import Block, Probe, logits_of
from abnn.model.distance import FeatureDistance
from abnn.model.features import widths_of
from abnn.model.graft import graft
from abnn.model.views import batches_in, spread
from abnn.predict.compiled_pass import CompiledPass
from abnn.predict.heap import keep_heap
from abnn.predict.replay import Replay

if TYPE_CHECKING:
    from abnn.predict.prediction import Prediction
    from abnn.triage import Triage


class Attached(nn.Module):
    """A backbone with attachments: made by :func:`attach`, undone by :func:`detach`.

    ``model(x)`` has the shape of ``backbone(x)``, and ``softmax(model(x))`` is the prediction averaged over the held
    draws, which look at an image as it is. The draws change only with :meth:`resample`, so the same input gives the same
    output.
    """

    def __init__(self, backbone: nn.Module, example: Tensor, blocks: Sequence[Block], spec: Spec, found: Probe) -> None:
        super().__init__()
        keep_heap()
        device, dtype = _device_and_dtype(backbone)
        attachments = [part.to(device=device, dtype=dtype) for part in build_attachments(blocks, spec)]
        wrap = ReplacedBlock if spec.kind == "replace" else AttachedBlock
        self.net = graft(backbone, {block.module: wrap(block, part) for block, part in zip(blocks, attachments)})
        self.spec = spec
        self.block_names = [block.name for block in blocks]
        self.input_shape = tuple(example.shape[1:])
        self.input_dtype, self.weight_dtype = example.dtype, dtype
        output = found.calls[""].output
        if output is None:
            raise AttachError(
                "backbone: its output is not a tensor (or a tuple that starts with one); wrap it in a module that "
                "returns the logits."
            )
        if len(output) != 2 or output[0] != found.batch or output[1] < 2:
            raise AttachError(_no_classes(output, found.batch))
        if found.logits is not None and _are_probabilities(found.logits):
            accepted = "logits, of which attachments and scores take the softmax themselves"
            fix = "Return the logits, or log(p)."
            message = explain("backbone", "a network that returns probabilities", accepted, fix)
            warnings.warn(message, AbnnWarning, stacklevel=3)
        self.classes = output[1]
        self.activation_bytes = 4 * found.activation_numbers
        self.shared_bytes, self.folded_bytes = _activations(found, blocks[0].name, dtype.itemsize)
        self.preset = "default"
        self.score = "gated"
        self.views = 1
        self.triage: Triage | None = None  # thresholds and further notes, as kept by save() and load()
        self.extra: dict[str, Any] = {}
        self.backbone_changed = False  # whether the backbone has weights that it was not given with
        # Not registered as a submodule: its parameters are those of ``net``.
        self.__dict__["_backbone"] = backbone
        self._requires_grad = {name: p.requires_grad for name, p in backbone.named_parameters()}
        self._modes = {name: module.training for name, module in backbone.named_modules()}
        self._layers = [layer for part in attachments for layer in bayesian_layers(part)]
        self._layers = list(dict.fromkeys(self._layers))
        self._seen: tuple[int, ...] = ()
        self.kept_draws, self.replay = KeptDraws(), Replay()
        self.mean_network = MeanNetwork(self.net, self.attached_blocks, self._layers, self.replay.turn)
        self.distance = FeatureDistance(self.mean_network, widths_of(blocks), self.classes).to(device)
        self.compiled: CompiledPass | None = None

    # -- what it is made of -------------------------------------------------------------------------------------------

    @property
    def backbone(self) -> nn.Module:
        """The network as it was given, without attachments; it shares its parameters with this model."""
        backbone = self.__dict__["_backbone"]
        if backbone is None:
            raise AttachError("model: its attachments were taken off with detach(); attach again to use it.")
        return backbone

    @property
    def attached_blocks(self) -> list[AttachedBlock | ReplacedBlock]:
        """In the order of their calls."""
        return [self.net.get_submodule(name) for name in self.block_names]  # type: ignore[misc]

    @property
    def layers(self) -> list[MeanField]:
        """The Bayesian layers, each once, in the order of their first call."""
        return self._layers

    def attachment_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """omega_2: names that do not depend on the backbone, and parameters, each once."""
        seen: set[int] = set()
        for index, block in enumerate(self.attached_blocks):
            for name, parameter in block.attachment.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"{index}.{name}", parameter

    def backbone_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """omega_1: names in the backbone and parameters that this model uses, each once."""
        used = {id(parameter) for parameter in self.net.parameters()}
        return ((name, parameter) for name, parameter in self.backbone.named_parameters() if id(parameter) in used)

    def learning_backbone_parameters(self) -> list[nn.Parameter]:
        """Those of the backbone that learn where it is not frozen: all but the ones that do not require gradients."""
        learning = [parameter for _, parameter in self.backbone_parameters() if parameter.requires_grad]
        if not learning:
            given = "a backbone to train of which no parameter requires gradients"
            fix = "Call requires_grad_(True) on what shall learn, or leave the backbone frozen."
            raise InputError(explain("backbone", given, "one with parameters that do", fix))
        return learning

    @property
    def attachment_size(self) -> int:
        """How many numbers the attachments learn."""
        return sum(parameter.numel() for _, parameter in self.attachment_parameters())

    def kl(self, sampled: bool = False) -> Tensor:
        """KL[posterior || prior] over all attachments."""
        return kl_of(self._layers, sampled)

    @property
    def noise_bytes(self) -> int:
        """What the noise of one draw takes."""
        return sum(part[:, 0].numel() * part.element_size() for part in parts_of(hold_noise(self._layers)))

    # -- draws --------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> int:
        """The number of held draws."""
        return self._layers[0].draws

    def resample(self, draws: int | range | None = None, seed: int | None = None) -> None:
        """Hold new draws: fresh ones, or with a seed those that belong to it.

        With a seed, draw s depends on (seed, s) alone, on every device; ``draws=range(5, 10)`` gives the second half of
        the ten draws of that seed.
        """
        wanted = draws if isinstance(draws, range) else range(check_draws(self.draws if draws is None else draws))
        if seed is None:
            for layer in self._layers:
                layer.resample(len(wanted))
            return
        generators = [torch.Generator().manual_seed(draw_seed(seed, index)) for index in wanted]
        for layer in self._layers:
            layer.resample_seeded(generators)

    # -- passes -------------------------------------------------------------------------------------------------------

    @property
    def folds_at_input(self) -> bool:
        """Whether draws are folded at the network's input, because its structure leaves no later place."""
        return not any(block.unfolds for block in self.attached_blocks)

    def draw_logits(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The network's output for every held draw, [S, B, classes, ...]."""
        if self.__dict__["_backbone"] is None:
            raise AttachError("model: its attachments were taken off with detach(); attach again to use it.")
        draws, batch = self.draws, x.shape[0] // batches_in(self._seen)
        if self.folds_at_input and draws > 1:
            x = spread(x, self._seen or (0,) * draws)
        logits = logits_of(self.net(x, *args, **kwargs))
        assert logits is not None
        return logits.unflatten(0, (draws, batch))

    @contextlib.contextmanager
    def looking(self, seen: tuple[int, ...]) -> Iterator[None]:
        """Inside, inputs come as several views, see :mod:`abnn.model.views`, and draw s looks at number ``seen[s]``."""
        first: Any = self.net.get_submodule(self.block_names[0])
        self._seen, first.seen = seen, seen if first.unfolds else ()
        try:
            yield
        finally:
            self._seen = first.seen = ()

    @contextlib.contextmanager
    def keeping_weights(self) -> Iterator[None]:
        """Inside, the weights of the held draws are made once for all passes; noise and parameters must not change."""
        for layer in self._layers:
            layer.made = {}
        try:
            yield
        finally:
            for layer in self._layers:
                layer.made = None

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return mean_logits(self.draw_logits(x, *args, **kwargs))

    def predict(self, x: Any, draws: int = 10, seed: int | None = 0, **options: Any) -> Prediction:
        """Average ``draws`` weight draws; see :func:`abnn.predict.prediction.predict`."""
        from abnn.predict.prediction import predict

        return predict(self, x, draws=draws, seed=seed, **options)

    def compile(self, *args: Any, disable: bool = False, **options: Any) -> None:
        """Run :meth:`predict`, and ``model(x)``, compiled from now on; ``disable=True`` goes back.

        Takes what ``torch.compile`` takes. Nothing is compiled before the first prediction, which then takes up to a
        minute; so does the first of another batch size, after which sizes do not matter. Draws and results are the same
        up to rounding. On CUDA predictions are one graph with and without compiling, so that modes which add graphs
        ("reduce-overhead", "max-autotune") do so for ``model(x)`` alone. Copies of the model compile anew, and
        nothing of it is saved. Training has an option of its own, ``abnn.FitConfig(compile=True)``.
        """
        if disable:
            self._compiled_call_impl = self.compiled = None
            return
        super().compile(*args, **options)
        self.compiled = CompiledPass(**options)

    def save(self, path: str | Path, backbone: bool = False, **extra: Any) -> Path:
        """Write the attachments, and the backbone's weights if asked; see :func:`abnn.store.folder.save`."""
        from abnn.store.folder import save

        return save(self, path, backbone=backbone, **extra)

    def extra_repr(self) -> str:
        return f"kind={self.spec.kind!r}, at={self.block_names}, attachment_size={self.attachment_size:,}"


def _no_classes(output: tuple[int, ...], batch: int) -> str:
    given = f"a network with outputs of shape {output} for {batch} {'input' if batch == 1 else 'inputs'}"
    accepted = f"shape ({batch}, K), one logit for each of K >= 2 classes"
    if output in ((batch,), (batch, 1)):
        fix = "For one logit z of a yes-or-no question, wrap it in a module that returns torch.stack([0 * z, z], 1), z flat."
    else:
        fix = "Wrap it in a module that returns one row of logits for each input."
    return explain("backbone", given, accepted, fix)


def _are_probabilities(output: Tensor) -> bool:
    return bool((output >= 0).all() and ((output.float().sum(1) - 1).abs() < 1e-4).all())


def mean_logits(draw_logits: Tensor) -> Tensor:
    """Logits of the averaged prediction: log 1/S sum_s softmax(z_s) + 1/S sum_s logsumexp(z_s).

    The second term changes no probability and makes the result equal to z where all draws agree on it.
    """
    log_probs = draw_logits.log_softmax(dim=2)
    mean = log_probs.logsumexp(dim=0) - math.log(draw_logits.shape[0])
    return mean + draw_logits.logsumexp(dim=2, keepdim=True).mean(dim=0)


def check_draws(draws: object) -> int:
    """The number of draws as an int, whichever library the whole number comes from."""
    return at_least_one("draws", draws, fix="Ten is a good start.")


def _device_and_dtype(backbone: nn.Module) -> tuple[torch.device, torch.dtype]:
    for parameter in backbone.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    return torch.device("cpu"), torch.float32


def _activations(found: Probe, first: str, itemsize: int) -> tuple[int, int]:
    """The most bytes that a module reads and writes for one input: before the block ``first``, and from it on."""
    start = found.calls[first].order
    sizes = [0, 0]
    for call in found.calls.values():
        numbers = sum(math.prod(shape) for shape in (call.input, call.output) if shape is not None)
        after = int(call.order >= start)
        sizes[after] = max(sizes[after], -(-numbers * itemsize // found.batch))
    return sizes[0], sizes[1]
