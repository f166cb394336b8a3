"""Regression: one or several real numbers for each input, or numbers and the logarithms of their variances.

With m the mean prediction, y the target and m_0 the backbone's prediction, all in units of the targets' spread,

    ordinary data   E / s^2,    E = (1 - distil) (m - y)^2 + distil (m - m_0)^2,    s^2 the backbone's mean squared
                    error
    outliers        [(1 - t) E + t (m^2 + 1)] / [(1 - t) s^2 + t]

for outliers of severity t. Their target moves towards "any value": the distribution of all targets, with mean 0 and
variance 1. Both losses are Gaussian likelihoods up to constants.

A network that also gives variances v learns by [ln v + E / v] / 2 instead, where E includes the backbone's variance.
How far a prediction may be off is learnt apart from that, see :mod:`abnn.tasks.spread`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from abnn.config import Objective
from abnn.errors import AttachError, InputError, explain
from abnn.model.evidence import Evidence
from abnn.tasks.base import Task, Usual, wrong_outputs
from abnn.tasks.spread import Spread, centre_and_unit

PARTS = ["width", "noise", "change of mind", "extremity"]
SMALL = 1e-3  # is added to "change of mind", so that its logarithm is finite
WRONG = 0.8  # quantile of errors above which a prediction counts as wrong
LEAST = 1e-4  # the smallest mean squared error of the backbone that counts, in units of the targets' spread
LOGS = 15.0  # logarithms of variances are cut to +-this, in units of the targets' spread


class Regression(Task):
    """Real numbers, [B], [B, 1] or [B, D].

    variance  whether the network also gives variances: [B, 2 D], first D means, then the logarithms of D variances
    """

    name = "regression"
    distribution = "numbers"
    measure = "squared_error"
    first_score = "variance"

    def __init__(self, variance: bool = False) -> None:
        if variance not in (True, False):
            raise InputError(explain("variance", repr(variance), "True or False"))
        self.variance, self.flat = variance, False  # flat: outputs [B]
        self.spread: Spread | None = None

    def options(self) -> dict[str, Any]:
        return {"variance": True} if self.variance else {}

    def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
        width = shape[1] if len(shape) == 2 else 1
        if len(shape) not in (1, 2) or shape[0] != batch or width % (1 + self.variance) or not width:
            accepted = f"shape ({batch}, 2 D), D means and then the logarithms of D variances"
            if not self.variance:
                accepted = f"shape ({batch},) or ({batch}, D), one or more numbers for each input"
            raise wrong_outputs(shape, batch, accepted, "Wrap it in a module that returns one row for each.")
        self.flat = len(shape) == 1
        return width

    def check_targets(self, y: Tensor, inputs: int, outputs: int, values: bool = True) -> Tensor:
        numbers = outputs // 2 if self.variance else outputs
        shape = tuple(y.shape)
        accepted = f"shape ({inputs}, {numbers}), one target for each number that the network says"
        if shape != (inputs, numbers) and not (shape == (inputs,) and numbers == 1):
            raise InputError(explain("loader", f"targets of shape {shape} for {inputs} inputs", accepted))
        if y.dtype == torch.bool or y.is_complex():
            raise InputError(explain("loader", f"targets of type {y.dtype}", "real numbers"))
        y = y.float().view(inputs, numbers)
        if values and not torch.isfinite(y).all():
            rows = (~torch.isfinite(y)).any(1).nonzero()[:5, 0].tolist()
            actual = f"NaN or infinite targets in rows {', '.join(map(str, rows))} of the batch"
            raise InputError(explain("loader", actual, "finite targets", "Leave out inputs without a target."))
        return y

    def prepare(self, outputs: int, places: int, readout: int | None) -> None:
        if not places:
            accepted = "bounded attachments, of the default preset"
            raise AttachError(explain("task", "regression with attachments of another kind", accepted))
        self.spread = Spread(outputs // 2 if self.variance else outputs, places, readout, self.separate)

    def measure_targets(self, targets: Tensor) -> None:
        assert self.spread is not None
        self.spread.measure(targets)

    def separate(self, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return means, [..., D], and logarithms of variances; None for these where the network gives none."""
        outputs = (outputs[..., None] if self.flat else outputs).float()
        if not self.variance:
            return outputs, None
        means, logs = outputs.chunk(2, dim=-1)
        return means, logs

    def average(self, outputs: Tensor, plain: bool = False) -> Tensor:
        """Return the mean over the draws. Beside the plain network, after a fit, attachments count by ``trust``."""
        assert self.spread is not None
        means, logs = self.separate(outputs)
        mean = means.mean(0)
        if plain and self.spread.measured:
            mean = torch.lerp(means[0], means[1:].mean(0), self.spread.trust)
        if logs is not None:
            variance = logs.exp().mean(0) + means.var(0, correction=0)
            mean = torch.cat([mean, variance.log()], dim=-1)
        return (mean[..., 0] if self.flat else mean).to(outputs.dtype)

    def _units(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return centre and unit of targets: those of the fit, else those of this batch."""
        spread = self.spread
        assert spread is not None
        return (spread.centre, spread.unit) if spread.measured else centre_and_unit(target)

    def _loss(
        self, goal: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None, severity: Any, generator: Any
    ) -> Tensor:
        centre, unit = self._units(target)
        means, logs = self.separate(self.average(outputs))
        value, right = (means - centre) / unit, (target - centre) / unit
        error, backbone = (value - right).square(), value.detach()
        if plain is not None:
            plain_means, plain_logs = self.separate(plain)
            backbone = (plain_means - centre) / unit
            distance = (value - backbone).square()
            if plain_logs is not None:
                distance = distance + (plain_logs - 2 * unit.log()).clamp(-LOGS, LOGS).exp()
            error = torch.lerp(error, distance, goal.distil)
        scale = (backbone - right).square().mean(0).clamp(LEAST, 1)
        if severity is not None:
            share = severity[:, None].float()
            error = torch.lerp(error, value.square() + 1, share)
            scale = torch.lerp(scale, torch.ones_like(scale), share)
        if logs is None:
            return (error / scale).mean()
        logs = (logs - 2 * unit.log()).clamp(-LOGS, LOGS)
        return (logs + error / logs.exp()).mean() / 2

    def part_names(self, readout: bool) -> list[str]:
        return PARTS

    def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
        spread = self.spread
        assert spread is not None
        mean, noise, unknown = spread(evidence).chunk(3, dim=1)
        value, noise, unknown = (mean - spread.centre) / spread.unit, noise / spread.unit, unknown / spread.unit
        (plain, _), (attached, _) = self.separate(evidence.plain), self.separate(evidence.attached)
        change = (plain - attached).abs() / (noise * spread.unit)
        width = (noise.square() + unknown.square()).log().mean(1) / 2
        return torch.stack([width, noise.log().mean(1), (change.mean(1) + SMALL).log(), value.abs().amax(1)], dim=1)

    def samples(self, outputs: Tensor) -> Tensor:
        return self.separate(outputs)[0]

    def errors(self, outputs: Tensor, target: Tensor) -> Tensor:
        _, unit = self._units(target)
        return ((self.separate(outputs)[0].mean(0) - target) / unit).square().mean(1)

    def right(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the squared error of the mean, in units of the targets' variance."""
        return self.errors(outputs, target)

    def right_inputs(self, evidence: Evidence, labels: Tensor, hidden: Tensor) -> Tensor:
        errors = self.errors(torch.stack([evidence.plain, evidence.attached]), labels)
        return errors <= errors.quantile(WRONG)
