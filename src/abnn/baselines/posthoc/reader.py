"""Read from a model what post-hoc scores need: logits, last features and block statistics, in one pass.

The network is not changed: every pass has a view of it of its own (:mod:`abnn.model.graft`), which notes what flows through its
blocks and into its last linear layer. Of an attached model, everything is averaged over the draws, or read from its plain backbone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from abnn.attached import Attached
from abnn.baselines.options import check_choice, check_count
from abnn.baselines.posthoc.base import Features, Head, PostHoc
from abnn.bayes.noise import NoiseCache
from abnn.config import DRAWS
from abnn.errors import AttachError, InputError, explain, not_negative
from abnn.model.attached_blocks import Readout
from abnn.model.blocks import Block, Probe, find_readout, probe
from abnn.model.calls import logits_of
from abnn.model.features import Recorder, sketch, sketch_factor, widths_of
from abnn.model.graft import graft
from abnn.model.inputs import Batch, Inputs, call, join, mask_of, rows_of
from abnn.model.passes import Pass
from abnn.model.shadow import shadow, turn_of
from abnn.model.tokens import are_tokens, token_table
from abnn.predict import Plain
from abnn.predict.chunks import MEMORY_LIMIT
from abnn.predict.plain import device_of
from abnn.tasks.classification import mean_logits
from abnn.train.batches import check_batch

MOST = 50_000


class Reader:
    """Reads :class:`Features` from a plain network or an attached model.

    of  "model": of an attached model, averaged over its draws; "backbone": of its backbone without attachments
    at  the blocks whose statistics are read; None: those that carry attachments, or all that are found

    ``missing`` says, by name, which parts of Features this network cannot give, and why.
    """

    def __init__(self, model: Attached | Plain, of: str = "model", at: str | Sequence[str] | None = None) -> None:
        check_choice("of", of, ("model", "backbone"))
        core = model if isinstance(model, Attached) else getattr(model, "network", None)
        if not isinstance(core, nn.Module):
            accepted = "an attached model, or a plain network with its example"
            fix = "Wrap a network with abnn.predict.Plain(network, x[:1])."
            raise InputError(explain("model", type(model).__name__, accepted, fix))
        self.model = model
        self.attached = core if isinstance(core, Attached) and of == "model" else None
        plain = core.backbone if isinstance(core, Attached) else core
        self.network: nn.Module = plain if self.attached is None else self.attached.net
        self.device = device_of(plain, torch.device("cpu"))
        self.missing: dict[str, str] = {}
        self.example: Batch = rows_of(join([model.example] * 2), lambda rows: rows.to(self.device))
        if isinstance(self.example, Tensor) and self.example.is_floating_point():  # noise: zeros would hide a last ReLU
            noise = torch.randn(self.example.shape, generator=torch.Generator().manual_seed(0))
            self.example = noise.to(self.example)
        table = token_table(plain) if are_tokens(self.example.dtype, tuple(self.example.shape[1:])) else None
        self.padding = None if table is None else table.padding_idx  # does not count, see abnn.model.inputs.mask_of
        structure = probe(plain, self.example)
        self.is_of_first_output = structure.has_later_outputs  # see abnn.store.schema.WithNetwork
        self._head, self._blocks = find_readout(structure, model.classes), self._find_blocks(structure, at)
        self.sketch = sketch_factor(widths_of(self._blocks))
        self.linear = self._find_linear()

    def _find_blocks(self, structure: Probe, at: str | Sequence[str] | None) -> list[Block]:
        if at is None and self.attached is not None:
            at = self.attached.block_names
        try:
            return structure.blocks(at)
        except AttachError:
            if at is not None:
                raise
            self.missing["blocks"] = "no repeated blocks and no linear or convolutional layers; name some with at=[...]"
            return []

    def _find_linear(self) -> nn.Linear | None:
        """The last layer counts as the head only if the network's output is its output, unchanged."""
        if self._head is None:
            self.missing["last"] = self.missing["head"] = (
                f"no linear layer that is called once, on one vector per input, and gives {self.model.classes} numbers"
            )
            return None
        view, recorder, _ = self._recording(())
        with torch.no_grad():
            output = self._pass(view, self.example, 1, 0).flatten(0, 1)
        module = self.network.get_submodule(self._head.name)
        module = module.block if isinstance(module, Readout) else module
        if isinstance(module, nn.Linear) and recorder is not None and torch.equal(output, recorder.take()[1]):
            return module
        self.missing["head"] = (
            f"a last linear layer {self._head.name!r} whose output is changed before it is the logits"
        )
        return None

    def head(self, device: torch.device | None = None) -> Head | None:
        """Return the last linear layer as it is now."""
        if self.linear is None:
            return None
        weight, bias = self.linear.weight, self.linear.bias
        return Head(weight.detach().float().to(device), None if bias is None else bias.detach().float().to(device))

    def read(self, x: Batch, draws: int | None = None, seed: int = 0) -> Features:
        """Return all features of one batch, on the network's device; draws and seed are those of ``model.predict``."""
        draws, x = self.number_of_draws(draws), x.to(self.device)

        def network(inputs: Tensor) -> tuple[Tensor | None, Tensor]:
            whole = x.replace(first=inputs) if isinstance(x, Inputs) else inputs
            return self._read(whole, draws, seed, ())[:2]

        with torch.no_grad():
            last, logits, notes = self._read(x, draws, seed, self._blocks)
            blocks = torch.cat([sketch(rows.float(), self.sketch) for rows in notes], dim=1) if notes else None
        return Features(logits, last, blocks, None, self.head(), x.first if isinstance(x, Inputs) else x, network)

    def _read(self, x: Batch, draws: int, seed: int, blocks: Sequence[Block]) -> tuple[Any, Tensor, list[Tensor]]:
        """Return last features, logits and statistics of ``blocks``, averaged over the draws; differentiable in ``x``."""
        view, head, recorders = self._recording(blocks)
        logits = mean_logits(self._pass(view, x, draws, seed).float())
        last = None if head is None else _mean(head.take()[0].float(), len(x))
        return last, logits, [_mean(rows, len(x)) for recorder in recorders for rows in recorder.take()]

    def _recording(self, blocks: Sequence[Block]) -> tuple[nn.Module, Recorder | None, list[Recorder]]:
        """Return a view of the network for one pass, which notes what goes into the last layer, and the statistics of ``blocks``."""
        view, head = self.network, None
        if self._head is not None:
            module = view.get_submodule(self._head.name)
            head = Recorder(dataclasses.replace(self._head, module=module), first=True)
            view = graft(view, {module: head})
        # Around the blocks after that, for one of them may contain the last layer.
        placed = [dataclasses.replace(block, module=view.get_submodule(block.name)) for block in blocks]
        recorders = {block.module: Recorder(block, first=index == 0) for index, block in enumerate(placed)}
        return graft(view, recorders), head, list(recorders.values())

    def _pass(self, view: nn.Module, x: Batch, draws: int, seed: int) -> Tensor:
        """Return the logits of every draw, [S, B, K], while the recorders of the view note what passes them."""
        recorders = [module for module in view.modules() if isinstance(module, Recorder)]
        for recorder in recorders:
            recorder.mask = mask_of(x, self.padding)
        if self.attached is None:
            twins = shadow(view)
            with turn_of(view):
                output = logits_of(call(twins[id(view)], x))
            assert output is not None
            logits = output[None]
        else:
            noise = NoiseCache().get(self.attached.layers, range(draws), seed) if draws else None  # None: mean weights
            run = Pass(self.attached, noise, root=view)
            logits, twins = run(x), run.twins
        for recorder in recorders:
            recorder.features = twins[id(recorder)].features  # type: ignore[assignment]
        return logits

    def number_of_draws(self, draws: int | None) -> int:
        """Return how many draws features are averaged over; 0: mean weights. None: what the model's preset says."""
        if draws is None:
            return DRAWS if self.attached is None else self.attached.usual_draws
        return not_negative("draws", draws)

    def chunks(self, x: Batch, draws: int | None, seed: int) -> Iterator[Features]:
        """:meth:`read` in parts that keep the activations of all draws within abnn.predict.MEMORY_LIMIT bytes."""
        draws = self.number_of_draws(draws)
        rows = len(x)
        if self.attached is not None:
            rows = max(1, MEMORY_LIMIT // max(1, 4 * self.attached.activation_bytes * (draws + 1)))
        for part in x.split(rows):
            yield self.read(part, draws, seed)

    def gather(
        self,
        batches: Iterable[Any],
        draws: int | None = None,
        seed: int = 0,
        most: int = MOST,
        keep: Collection[str] = ("last", "blocks"),
        notes: Sequence[PostHoc] = (),
    ) -> Features:
        """Return the features of all (x, y) batches, of at most ``most`` inputs: a random choice that belongs to the seed.

        keep   the parts to keep beside logits and labels
        notes  scores that note something of each input themselves
        """
        check_count("most", most)
        rng, kept = np.random.default_rng(seed), list[dict[str, Tensor]]()
        for batch in batches:
            x, y = check_batch(self.model, batch)
            start = 0
            for read in self.chunks(x, draws, seed):
                parts = {"logits": read.logits, "labels": y[start : start + len(read)]}
                parts |= {name: getattr(read, name) for name in ("last", "blocks") if name in keep}
                parts |= {f"note/{each.name}": each.note(read) for each in notes}
                parts["key"] = torch.from_numpy(rng.random(len(read)))
                kept.append({name: value.cpu() for name, value in parts.items() if value is not None})
                start += len(read)
                if sum(len(each["key"]) for each in kept) > 2 * most:
                    kept = [_choose(kept, most)]
        if not kept:
            fix = "Check data set and drop_last."
            raise InputError(explain("batches", "no batch", "at least one (x, y) batch", fix))
        rows = _choose(kept, most)
        by_score = {name.removeprefix("note/"): rows[name] for name in rows if name.startswith("note/")}
        head = self.head(torch.device("cpu"))
        return Features(rows["logits"], rows.get("last"), rows.get("blocks"), rows["labels"], head, notes=by_score)


def _choose(parts: Sequence[dict[str, Tensor]], most: int) -> dict[str, Tensor]:
    """Return at most so many of all rows: those with the smallest random keys, in the order they came."""
    whole = {name: torch.cat([rows[name] for rows in parts]) for name in parts[0]}
    chosen = whole["key"].argsort()[:most].sort().values
    return {name: value[chosen] for name, value in whole.items()}


def gather(
    model: Attached | Plain, batches: Iterable[Any], of: str = "model", at: Any = None, **options: Any
) -> Features:
    """Return the features of (x, y) batches as a plain network or an attached model sees them, in one pass, on the CPU.

    of and at are those of :class:`Reader`; options, such as draws, seed and most, those of :meth:`Reader.gather`.
    """
    return Reader(model, of, at).gather(batches, **options)


def _mean(rows: Tensor, batch: int) -> Tensor:
    """Return the average over draws of what comes once per draw and input; what comes once per input as it is."""
    return rows if len(rows) == batch else rows.unflatten(0, (-1, batch)).mean(0)
