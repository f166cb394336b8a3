"""An attached network as a module that any training loop can train: a batch in, its loss out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from abnn.errors import whole_seed
from abnn.model.network import AttachedNetwork
from abnn.outliers import PRESET, Outliers, measure_range
from abnn.train.batches import MEASURED, check_batch, generators_of
from abnn.train.combine import learn_score
from abnn.train.loss import check_model, choose_outliers, loss
from abnn.train.randomness import preserved_random_state, seed_everything, seeded


class Learner(nn.Module):
    """Attachments to be trained: in training mode a batch gives ``{"loss": ...}``, what one step of :func:`abnn.fit` minimises.

    In eval mode it gives what the model gives. Only attachments require gradients from now on, so that an optimiser over all parameters
    that do trains them alone; :meth:`finish` gives the backbone its flags back. Random numbers belong to (seed, epoch, step), as in a fit,
    and the loop's own are left alone.

    model     what abnn.attach() returned
    outliers  as in abnn.fit()
    held_out  (x, y) batches that the attachments do not learn from: from these the score is learnt. None: from the training data
    """

    accepts_loss_kwargs = False  # so that transformers.Trainer hands on the batch alone, and divides by its parts

    def __init__(
        self, model: AttachedNetwork, outliers: Any = PRESET, held_out: Iterable[Any] | None = None, seed: int = 0
    ) -> None:
        super().__init__()
        check_model(model)
        self.model, self.held_out, self.seed = model, held_out, whole_seed(seed)
        self.outliers: Outliers | None = choose_outliers(outliers, model.preset)
        self.epoch = self.step = 0
        self._flags = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
        learning = {id(parameter) for _, parameter in model.attachment_parameters()}
        for parameter, _ in self._flags:
            parameter.requires_grad_(id(parameter) in learning)

    def begin(self, batches: Iterable[Any]) -> None:
        """Measure the range of values on the first batches of the training data; called once, before the first step."""
        model = self.model
        model.forget_score()
        if self.outliers is None:
            return
        with preserved_random_state(*generators_of(batches)):
            first = (x for x, _ in islice(self._read(batches), MEASURED))
            self.outliers = self.outliers.prepared_for(model, None, partial(measure_range, first))

    def begin_epoch(self, epoch: int) -> None:
        """Say which epoch begins, from 0."""
        self.epoch, self.step = epoch, 0

    def forward(self, x: Any = None, y: Any = None, **batch: Any) -> Any:
        """Return ``{"loss": ...}`` of a batch: (x, y), a dict with "labels" in it, or the same by names."""
        inputs = batch if x is None else x
        if not self.training:
            return self.model(inputs) if isinstance(inputs, Tensor) else self.model(**inputs)
        with preserved_random_state():
            seed_everything(self.seed, "step", self.epoch, self.step, 0)
            generator = seeded("outliers", self.seed, self.epoch, self.step, 0)
            value = loss(self.model, inputs, y, self.outliers, freeze_backbone=True, generator=generator)
        self.step += 1
        return {"loss": value}

    def finish(self, batches: Iterable[Any]) -> None:
        """Learn the closed form and the score, as a fit does when its steps are done; called once, after the last step."""
        for parameter, flag in self._flags:
            parameter.requires_grad_(flag)
        self.model.eval()
        alone: Any = SimpleNamespace(world_size=1)
        with torch.inference_mode(False), torch.enable_grad(), preserved_random_state(*generators_of(batches)):
            learn_score(self.model, lambda: self._read(batches), self.held_out, self.outliers, alone, self.seed)

    def _read(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Tensor]]:
        for batch in batches:
            x, y = check_batch(self.model, batch)
            yield x.to(self.model.device), y.to(self.model.device)
