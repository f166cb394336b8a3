"""A network with attachments: its blocks, the draws it holds, its output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from abnn.bayes.closed_form import ClosedForm
from abnn.bayes.layers import MeanField, bayesian_layers, kl_of
from abnn.bayes.noise import draw_seed, held_noise, hold, no_noise, tensors_of
from abnn.bayes.witness import KINDS
from abnn.config import Objective, Spec
from abnn.errors import AttachError, InputError, at_least_one, explain
from abnn.model.attached_blocks import AttachedBlock, PassState, Readout, ReplacedBlock, WatchedBlock
from abnn.model.attachments import build_attachments
from abnn.model.beside import beside, join
from abnn.model.blocks import Block, Probe, find_readout
from abnn.model.evidence import Evidence
from abnn.model.features import condense, condensed_width
from abnn.model.graft import graft
from abnn.model.inputs import Batch, forms_of, measured_inputs, pack, rows_of
from abnn.model.passes import Pass, run_draws, with_logits
from abnn.model.tokens import are_tokens, token_table

MOST_PLACES = 8
"""Blocks at which features are noted. Neighbours are nearly alike, and reading a large output costs time."""

WORDS, MEANING = "words", "meaning"
"""Places of networks that read tokens: the words, and the direction of their mean embedding."""


class AttachedNetwork(nn.Module):
    """A backbone with attachments.

    ``model(x)`` has the shape of ``backbone(x)``, and ``softmax(model(x))`` is the prediction averaged over the held
    draws, without views. The draws change only with :meth:`resample`, so the same input gives the same output.

    task   what the output means, see :mod:`abnn.tasks`
    extra  further notes that are saved with the model: anything that JSON can hold
    views  number of views of an image in a prediction, see :mod:`abnn.model.views`
    """

    readout: Any  # the last linear layer, a Readout; None: there is no such layer

    def __init__(
        self,
        backbone: nn.Module,
        example: Batch,
        blocks: Sequence[Block],
        spec: Spec,
        structure: Probe,
        watched: Sequence[Block] = (),
        class_count: int = 0,
    ) -> None:
        super().__init__()
        device, dtype = _device_and_dtype(backbone)
        attachments = [part.to(device=device, dtype=dtype) for part in build_attachments(blocks, spec)]
        wrap = ReplacedBlock if spec.kind == "replace" else AttachedBlock
        replacements: dict[nn.Module, Any] = {block.module: WatchedBlock(block) for block in watched}
        for block, part in zip(blocks, attachments):
            replacements[block.module] = wrap(block, part)  # type: ignore[arg-type]
        self.spec = spec
        self.block_names = [block.name for block in blocks]
        self.example: Any = rows_of(example[:1], lambda rows: rows.detach().cpu())
        self.input_shape, self.input_dtype, self.weight_dtype = tuple(example.shape[1:]), example.dtype, dtype
        self.input_forms = forms_of(example)
        output = structure.calls[""].output
        if output is None:
            raise AttachError(
                "backbone: its output is not a tensor (or a tuple that starts with one); wrap it in a module that "
                "returns the logits."
            )
        self.classes = output[-1] if len(output) > 1 else 1
        self.is_of_first_output = structure.has_later_outputs  # and places and last layer follow from that
        readout = find_readout(structure, self.classes) if watched else None
        if readout is not None and not any(f"{readout.name}.".startswith(f"{block.name}.") for block in watched):
            replacements[readout.module] = Readout(readout.module)
        self.net = graft(backbone, replacements)
        self.activation_bytes = 4 * structure.activation_numbers
        self.shared_bytes, self.folded_bytes = _activations(structure, blocks[0].name, dtype.itemsize)
        self.task: Any = None
        self.triage: Any = None  # thresholds; a fit deletes them
        self.extra: dict[str, Any] = {}
        self.preset, self.score, self.views = "default", "entropy", 1
        self.usual_draws = 0  # of a prediction that names no number; 0: mean weights
        self.combined: Any = None  # the learnt score, see abnn.scores.combined
        self.seed: int | None = 0  # of the held draws; None: they have none
        self.learnt_from: frozenset[int] = frozenset()  # hashes of some inputs of the last fit; not saved
        self.backbone_changed = False  # whether its weights were trained, or loaded from a file, since attach()
        # Not registered as submodules: the backbone's parameters are those of ``net``.
        self.__dict__["_backbone"] = backbone
        self.__dict__["_replaced"] = [block.module for block in blocks] if spec.kind == "replace" else []
        self._requires_grad = {name: p.requires_grad for name, p in backbone.named_parameters()}
        self._modes = {name: module.training for name, module in backbone.named_modules()}
        self._layers = list(dict.fromkeys(layer for part in attachments for layer in bayesian_layers(part)))
        # Whether the plain network comes along in predictions, also in those of other threads while this one trains.
        self.comes_along = bool(watched)
        self.state = PassState(self._layers[0], plain=self.comes_along)
        # The places of the closed form: "words" and "meaning", "input", and the names of blocks.
        self.places: list[str] = []
        self.closed_form: ClosedForm | None = None
        for stand_in in replacements.values():
            stand_in.state = self.state
        for block in watched:  # up to the first attachment, outputs are the same with and without attachments
            replacements[block.module].remembers = spec.kind == "bounded"
            if block.name == blocks[0].name:
                break
        self.__dict__["readout"] = next((each for each in replacements.values() if isinstance(each, Readout)), None)
        if watched:
            blocks_read = place_blocks(watched)
            for block in watched:
                replacements[block.module].is_place = block in blocks_read
            widths = [condensed_width(block.output, block.layout) for block in blocks_read]
            self.places = [block.name for block in blocks_read]
            inputs = list(measured_inputs(example))
            self.places[:0] = [name for name, _, _ in inputs]
            widths[:0] = [condensed_width(tuple(value.shape), layout) for _, value, layout in inputs]
            table = token_table(backbone) if are_tokens(example.dtype, self.input_shape) else None
            if table is not None:
                self.state.table, self.state.padding = table, table.padding_idx
                self.places[:0] = [WORDS, MEANING]
                widths[:0] = [condensed_width((1, table.embedding_dim), "flat")]
            self.closed_form = ClosedForm(widths, class_count, 0 if table is None else table.num_embeddings)
            self.closed_form.to(device, torch.float32)  # whatever the default type of torch is

    # -- what it is made of -------------------------------------------------------------------------------------------

    @property
    def backbone(self) -> nn.Module:
        """The user's network, without attachments. It shares its parameters with this model."""
        self.check_attached()
        return self.__dict__["_backbone"]

    def check_attached(self) -> None:
        """Raise an error if the attachments were taken off."""
        if self.__dict__["_backbone"] is None:
            raise AttachError("model: its attachments were taken off with detach(); attach again to use it.")

    @property
    def attached_blocks(self) -> list[AttachedBlock | ReplacedBlock]:
        """The blocks with attachments, in the order of their calls."""
        return [self.net.get_submodule(name) for name in self.block_names]  # type: ignore[misc]

    @property
    def layers(self) -> list[MeanField]:
        """The Bayesian layers, each once, in the order of their first call."""
        return self._layers

    @property
    def device(self) -> torch.device:
        return self._layers[0].weight_mean.device

    def attachment_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield omega_2: names that do not depend on the backbone, and parameters, each once."""
        ids: set[int] = set()
        for index, block in enumerate(self.attached_blocks):
            for name, parameter in block.attachment.named_parameters():
                if id(parameter) not in ids:
                    ids.add(id(parameter))
                    yield f"{index}.{name}", parameter

    def backbone_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield omega_1: names in the backbone, and parameters that this model uses, each once."""
        used = {id(parameter) for parameter in self.net.parameters()}
        return ((name, parameter) for name, parameter in self.backbone.named_parameters() if id(parameter) in used)

    def learning_backbone_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the backbone that require gradients: they learn if the backbone is not frozen."""
        learning = [parameter for _, parameter in self.backbone_parameters() if parameter.requires_grad]
        if not learning:
            actual = "a backbone to train of which no parameter requires gradients"
            fix = "Call requires_grad_(True) on what shall learn, or leave the backbone frozen."
            raise InputError(explain("backbone", actual, "one with parameters that do", fix))
        return learning

    @property
    def attachment_size(self) -> int:
        """The number of parameters of all attachments."""
        return sum(parameter.numel() for _, parameter in self.attachment_parameters())

    def kl(self, sampled: bool = False) -> Tensor:
        """Return KL[posterior || prior] over all attachments."""
        return kl_of(self._layers, sampled)

    @property
    def noise_bytes(self) -> int:
        """The size of the noise of one draw."""
        return sum(part[:, 0].numel() * part.element_size() for part in tensors_of(held_noise(self._layers)))

    def train(self, mode: bool = True) -> AttachedNetwork:
        """Set the mode, of the backbone too: both share all modules but the containers on the way to a block."""
        super().train(mode)
        backbone = self.__dict__.get("_backbone")
        if backbone is not None:
            backbone.train(mode)
        return self

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> AttachedNetwork:
        """Move blocks that were replaced too, since detach() gives them back."""
        super()._apply(fn, recurse)
        for block in self.__dict__["_replaced"]:
            block._apply(fn)
        return self

    # -- draws --------------------------------------------------------------------------------------------------------

    @property
    def draws(self) -> int:
        """The number of held draws."""
        return self._layers[0].draws

    @property
    def mean_weights(self) -> bool:
        """Whether the held draws have mean weights, that is, no noise."""
        return not any(part.any() for part in tensors_of(held_noise(self._layers)))

    @property
    def is_judge(self) -> bool:
        """Whether a fit has learnt the combined score."""
        return self.combined is not None and self.combined.is_ready()

    def forget_score(self) -> None:
        """Remove thresholds and the learnt score: they are of the attachments as they were."""
        self.triage = None
        if self.combined is not None:
            self.combined.fitted.fill_(False)

    def resample(self, draws: int | range | None = None, seed: int | None = None) -> None:
        """Hold new draws. With a seed, draw s depends on (seed, s) alone, on every device.

        draws  their number; None: as many as now; 0: one draw with mean weights; range(5, 10): the second half of the
               ten draws of the seed
        seed   None: fresh draws
        """
        if draws == 0:
            self.seed = 0
            hold(self._layers, no_noise(self._layers))
            return
        if not isinstance(draws, range):
            draws = range(at_least_one("draws", self.draws if draws is None else draws, fix="Ten is a good start."))
        self.seed = seed if draws.start == 0 else None
        if seed is None:
            for layer in self._layers:
                layer.resample(len(draws))
            return
        generators = [torch.Generator().manual_seed(draw_seed(seed, index)) for index in draws]
        for layer in self._layers:
            layer.resample_seeded(generators)

    # -- output -------------------------------------------------------------------------------------------------------

    @property
    def folds_at_input(self) -> bool:
        """Whether draws are folded at the network's input, because its structure leaves no later place."""
        # A generator: this runs with every prediction, and mostly the first block decides.
        return not any(self.net.get_submodule(name).unfolds for name in self.block_names)

    def draw_logits(self, x: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        """Return the network's output for every held draw, [S, B, classes, ...]."""
        self.check_attached()
        return run_draws(self.net, self.state, self.folds_at_input, _pack_call(x, args, kwargs)[0])[0]

    def make_constants(self) -> None:
        """Compute the constants of the learnt score again if a buffer that they follow from has changed.

        Call it before passes that run no Python: captured, compiled or exported ones.
        """
        if self.closed_form is not None and self.combined is not None:
            self.closed_form.constants()
            self.combined.constants()
            self.combined.claims(None if self.readout is None else self.readout.block.weight)

    def gather(self, run: Pass, outputs: Tensor, nearest: bool = False) -> Evidence:
        """Return the evidence of a pass with ``noting``.

        outputs  of the pass, [S, B, K], the plain network's first
        nearest  keep only the nearest class at each place: less to compute, and enough where no class is hidden
        """
        assert self.closed_form is not None
        features, last = run.take_features(wait=False)
        with beside(outputs.device, run.state.beside):
            statistics = self.closed_form([condense(part) for part in features], nearest)
        join([statistics, features[0]], run.state.beside)
        evidence = self.evidence(outputs, last, statistics)
        return evidence if self.closed_form.words is None else evidence._replace(words=features[0])

    def evidence(self, outputs: Tensor, last: Tensor | None, statistics: Tensor) -> Evidence:
        """Return the evidence of a pass.

        outputs     [S, B, K], the plain network's first
        last        input of the last layer
        statistics  output of the closed form
        """
        layer = None if self.readout is None or last is None else self.readout.block
        weight, bias = (None, None) if layer is None else (layer.weight, layer.bias)
        attached = outputs[1] if len(outputs) == 2 else self.task.average(outputs[1:])
        count = len(self.places)
        variances, kinds, rest = statistics.tensor_split((count, count + len(KINDS)), dim=1)
        classes = rest.unflatten(1, (count, -1)) if rest.shape[1] else None
        return Evidence(outputs[0].float(), attached.float(), last, weight, bias, variances, kinds, classes)

    def forward(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return what the backbone would return, averaged over the held draws: logits, or a mapping with these logits.

        Where ``labels`` come by name, the mapping has the loss of the averaged prediction.
        """
        self.check_attached()
        batch, labels = _pack_call(x, args, kwargs)
        draws, output = run_draws(self.net, self.state, self.folds_at_input, batch)
        loss = None
        if labels is not None:
            labels = self.task.check_targets(labels, draws.shape[1], self.classes, values=False)
            loss = self.task.id_loss(AS_LABELLED, draws.float(), labels)
        return with_logits(output, self.task.average(draws, self.state.plain), loss)

    def extra_repr(self) -> str:
        return f"kind={self.spec.kind!r}, at={self.block_names}, attachment_size={self.attachment_size:,}"


AS_LABELLED = Objective(distil=0.0, hide=0.0)


def _pack_call(x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Batch, Any]:
    """Return the batch in the arguments of a call, and the labels, or None."""
    if isinstance(x, Tensor) and not args and not kwargs:
        return x, None
    return pack(args if x is None and not args else (x, *args), kwargs)


def place_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks that are places: all, or ``MOST_PLACES`` at equal distances from the first to the last."""
    count = min(MOST_PLACES, len(blocks))
    return [blocks[round(number * (len(blocks) - 1) / max(1, count - 1))] for number in range(count)]


def _device_and_dtype(backbone: nn.Module) -> tuple[torch.device, torch.dtype]:
    for parameter in backbone.parameters():
        if parameter.is_floating_point():
            return parameter.device, parameter.dtype
    return torch.device("cpu"), torch.float32


def _activations(structure: Probe, first: str, itemsize: int) -> tuple[int, int]:
    """Return the most bytes that a module reads and writes for one input, before the block ``first`` and from it on."""
    start = structure.calls[first].order
    sizes = [0, 0]
    for call in structure.calls.values():
        numbers = sum(math.prod(shape) for shape in (call.input, call.output) if shape is not None)
        after = int(call.order >= start)
        sizes[after] = max(sizes[after], -(-numbers * itemsize // structure.batch))
    return sizes[0], sizes[1]
