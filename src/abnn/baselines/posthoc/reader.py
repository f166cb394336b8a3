"""Read from a model what post-hoc scores need: logits, last features and block statistics, in one pass.

The network is not changed: a second view of it (:mod:`abnn.model.graft`) notes what flows through its blocks and into its last
linear layer. Of an attached model, everything is averaged over the draws, or read from its plain backbone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from abnn.attached import Attached
from abnn.baselines.base import check_count
from abnn.baselines.posthoc.base import Features, Head
from abnn.baselines.posthoc.sample import Sample
from abnn.bayes.noise import NoiseCache
from abnn.errors import AttachError, InputError, explain, unknown
from abnn.model.blocks import Block, Probe, logits_of, probe
from abnn.model.features import Recorder, sketch, sketch_factor, widths_of
from abnn.model.graft import graft
from abnn.model.network import check_draws, mean_logits
from abnn.model.passes import Pass
from abnn.model.shadow import shadow
from abnn.predict import Plain
from abnn.predict.chunks import MEMORY_LIMIT
from abnn.train.batches import check_batch

SOURCES = ("model", "backbone")
MOST = 50_000


class Reader:
    """Reads :class:`Features` from a plain network or an attached model.

    of  "model": of an attached model, averaged over its draws; "backbone": of its backbone without attachments
    at  the blocks whose statistics are read; None: those that carry attachments, or all that are found

    ``missing`` says, by name, which parts of Features this network cannot give, and why.
    """

    def __init__(self, model: Attached | Plain, of: str = "model", at: str | Sequence[str] | None = None) -> None:
        if of not in SOURCES:
            raise unknown("of", of, SOURCES)
        core = model if isinstance(model, Attached) else getattr(model, "network", None)
        if not isinstance(core, nn.Module):
            raise InputError(
                explain(
                    "model",
                    type(model).__name__,
                    "an attached model, or a plain network with its example",
                    "Wrap a network with abnn.predict.Plain(network, x[:1]).",
                )
            )
        self.model = model
        self.attached = core if isinstance(core, Attached) and of == "model" else None
        plain = core.backbone if isinstance(core, Attached) else core
        self.network: nn.Module = plain if self.attached is None else self.attached.net
        self.device = next((parameter.device for parameter in plain.parameters()), torch.device("cpu"))
        self.missing: dict[str, str] = {}
        example = self._example()
        found = probe(plain, example)
        head = _head(found, model.classes)
        blocks = self._blocks(found, at)
        self._view, self._head, self._recorders = _view(self.network, head, blocks)
        self.sketch = sketch_factor(widths_of(blocks))
        self.linear: nn.Linear | None = None
        if head is None:
            self.missing["last"] = self.missing["head"] = (
                f"no linear layer that is called once, on one vector per input, and gives {model.classes} numbers"
            )
        else:
            self._find_linear(head, example)

    # -- what there is to read ----------------------------------------------------------------------------------------

    def _example(self) -> Tensor:
        shape, dtype = (2, *self.model.input_shape), self.model.input_dtype
        if not dtype.is_floating_point:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(self.device, dtype)

    def _blocks(self, found: Probe, at: str | Sequence[str] | None) -> list[Block]:
        if at is None and self.attached is not None:
            at = self.attached.block_names
        try:
            return found.blocks(at)
        except AttachError:
            if at is not None:
                raise
            self.missing["blocks"] = "no repeated blocks and no linear or convolutional layers; name some with at=[...]"
            return []

    def _find_linear(self, head: Block, example: Tensor) -> None:
        """The last layer counts as the head only if the network's output is its output, unchanged."""
        module = self.network.get_submodule(head.name)
        assert self._head is not None
        with torch.no_grad():
            run, twins = self._open(1, 0)
            output = run(example).flatten(0, 1)
        _, noted = twins[id(self._head)].take()  # type: ignore[operator]
        if isinstance(module, nn.Linear) and torch.equal(output, noted):
            self.linear = module
        else:
            self.missing["head"] = (
                f"the output of its last linear layer, {head.name!r}, is changed before it is the logits"
            )

    @property
    def head(self) -> Head | None:
        """The last linear layer as it is now."""
        if self.linear is None:
            return None
        bias = self.linear.bias
        return Head(self.linear.weight.detach().float(), None if bias is None else bias.detach().float())

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, x: Tensor, draws: int = 10, seed: int | None = 0) -> Features:
        """All features of one batch, on the network's device; draws and seed are those of ``model.predict``."""
        x = x.to(self.device)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        with torch.no_grad():
            run, twins = self._open(draws, seed)
            logits = mean_logits(run(x).float())
            recorders: list[Any] = [twins[id(each)] for each in self._recorders]
            head: Any = None if self._head is None else twins[id(self._head)]
            last = None if head is None else _mean(head.take()[0].float(), len(x))
            parts = [_mean(noted, len(x)) for recorder in recorders for noted in recorder.take()]
            blocks = torch.cat([sketch(each.float(), self.sketch) for each in parts], dim=1) if parts else None
        return Features(
            logits, last, blocks, None, self.head, x, lambda inputs: self.logits(inputs, draws=draws, seed=seed)
        )

    def _open(
        self, draws: int, seed: int, root: nn.Module | None = None
    ) -> tuple[Callable[[Tensor], Tensor], dict[int, nn.Module]]:
        """Return a pass of its own, from inputs to the logits of every draw, [S, B, K], and the modules that it uses."""
        root = self._view if root is None else root
        if self.attached is not None:
            noise = NoiseCache().get(self.attached.layers, range(draws), seed)
            run = Pass(self.attached, noise, root=root)
            return run, run.twins
        twins = shadow(root)

        def plain(x: Tensor) -> Tensor:
            logits = logits_of(twins[id(root)](x))
            assert logits is not None
            return logits[None]

        return plain, twins

    def chunks(self, x: Tensor, draws: int, seed: int | None) -> Iterator[Features]:
        """:meth:`read` in parts that keep the activations of all draws within abnn.predict.MEMORY_LIMIT bytes."""
        draws = check_draws(draws)
        rows = len(x)
        if self.attached is not None:
            rows = max(1, MEMORY_LIMIT // max(1, 4 * self.attached.activation_bytes * draws))
        for part in x.split(rows):
            yield self.read(part, draws, seed)

    def logits(self, x: Tensor, draws: int, seed: int) -> Tensor:
        """Logits of the (averaged) prediction, differentiable in ``x``."""
        run, _ = self._open(draws, seed, self.network)
        return mean_logits(run(x)) if self.attached is not None else run(x)[0]

    def gather(
        self,
        batches: Iterable[Any],
        draws: int = 10,
        seed: int = 0,
        most: int = MOST,
        keep: Collection[str] = ("last", "blocks"),
    ) -> Features:
        """The features of all (x, y) batches, of at most ``most`` inputs: a random choice that belongs to the seed."""
        check_count("most", most)
        sample = Sample(most, seed)
        for batch in batches:
            x, y = check_batch(self.model, batch)
            start = 0
            for read in self.chunks(x, draws, seed):
                parts = {"logits": read.logits, "labels": y[start : start + len(read)]}
                parts |= {name: getattr(read, name) for name in ("last", "blocks") if name in keep}
                sample.add({name: value.cpu() for name, value in parts.items() if value is not None})
                start += len(read)
        head = self.head
        if head is not None:
            head = Head(head.weight.cpu(), None if head.bias is None else head.bias.cpu())
        rows = sample.finish()
        return Features(rows["logits"], rows.get("last"), rows.get("blocks"), rows["labels"], head)


def gather(
    model: Attached | Plain,
    batches: Iterable[Any],
    of: str = "model",
    at: str | Sequence[str] | None = None,
    draws: int = 10,
    seed: int = 0,
    most: int = MOST,
) -> Features:
    """The features of (x, y) batches as a plain network or an attached model sees them, in one pass, on the CPU.

    of     "model": of an attached model, averaged over its draws; "backbone": of its backbone without attachments
    at     names of the blocks whose statistics are read; None finds them
    draws  and seed: of an attached model's predictions
    most   inputs to keep at the most, a random choice that belongs to the seed
    """
    return Reader(model, of, at).gather(batches, draws, seed, most)


def _head(found: Probe, classes: int) -> Block | None:
    """The last linear layer in the order of calls, if it turns one vector per input into the logits' number."""
    linear = [name for name in found.calls if isinstance(found.modules[name], nn.Linear)]
    name = max(linear, key=lambda name: found.calls[name].order, default=None)
    if name is None:
        return None
    call = found.calls[name]
    if call.count > 1 or call.input is None or len(call.input) != 2 or call.output != (found.batch, classes):
        return None
    return Block(name, found.modules[name], call.input, call.output, "flat")


def _view(
    network: nn.Module, head: Block | None, blocks: list[Block]
) -> tuple[nn.Module, Recorder | None, list[Recorder]]:
    """The network with recorders around its last layer and, after that, around its blocks, which may contain it."""
    view, last = network, None
    if head is not None:
        module = network.get_submodule(head.name)
        last = Recorder(dataclasses.replace(head, module=module), first=True)
        view = graft(network, {module: last})
    seen = [dataclasses.replace(block, module=view.get_submodule(block.name)) for block in blocks]
    recorders = {block.module: Recorder(block, first=index == 0) for index, block in enumerate(seen)}
    return graft(view, recorders), last, list(recorders.values())


def _mean(rows: Tensor, batch: int) -> Tensor:
    """The average over draws of what comes once per draw and input; what comes once per input as it is."""
    return rows if len(rows) == batch else rows.unflatten(0, (-1, batch)).mean(0)
