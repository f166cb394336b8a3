"""A predicted number, and how far it may be off: by its noise, and because the data say little about the input.

**Mean.** m = plain + trust (attached - plain). ``trust`` is between 0 and 1, by least squares on data held out of the
fit: attachments that made predictions worse there do not count. What follows is in units of the targets' spread.

**Noise.** ln a(x)^2 = offset + w' f(x). f is the prediction, its square, and what goes into the last layer; each is
standardised and cut to where the data are. With w ~ N(0, 1/40) beforehand, w is the most probable one given the
residuals r of the data that attachments learn from. ``offset`` makes r^2 / a^2 equal to 1 on average over data held out
of that fit. For a network with variances of its own, w' f is the logarithm of these. Outside of the data, a moves
towards the mean noise s where it is below s: by the share o / (1 + o), with o = max_k max(0, v_k / Q_k - 1).

**Not known.** e(x)^2 = s^2 mean_k (d_k / n) v_k + taught max_k max(0, v_k / Q_k - 1). The first term is the exact
posterior variance of a linear attachment at place k with d_k features and n inputs, with s^2 the mean noise and v_k as
in :mod:`abnn.bayes.closed_form`. The second term is zero wherever held-out inputs lie (Q_k is their largest v_k), and
grows without bound outside. ``taught`` is the likeliest value for outliers, whose target is "any value": the
distribution of all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from abnn.model.evidence import Evidence

CUT = 4.0  # standard deviations, of features
RIDGE = 40.0  # the precision of w beforehand
NEWTON = 50  # steps at most
LEAST = 1e-6  # of a standard deviation, in units of the targets'
LARGEST = 60.0  # of ln v_k / Q_k
FINEST = 0.1  # is added to the unit of a feature, relative to the mean of all units: smaller differences are rounding


class TrainingOutputs(NamedTuple):
    """What a network gives for inputs that its attachments have learnt from.

    plain     outputs without attachments
    attached  outputs with them
    last      what goes into the last linear layer; None: there is no such layer
    targets   the targets of the inputs
    """

    plain: Tensor
    attached: Tensor
    last: Tensor | None
    targets: Tensor


class Spread(nn.Module):
    """Standard deviations of predicted numbers, see the module.

    outputs   how many numbers are predicted
    places    at how many places variances are read
    readout   how many features go into the last linear layer; None: there is none
    separate  splits outputs into means and logarithms of variances, which are None where the network gives none
    """

    _measured: bool | None = None

    def __init__(
        self,
        outputs: int,
        places: int,
        readout: int | None,
        separate: Callable[[Tensor], tuple[Tensor, Tensor | None]],
    ) -> None:
        super().__init__()
        features = 2 * outputs + (readout or 0)
        self.centre, self.unit = nn.Buffer(torch.zeros(outputs)), nn.Buffer(torch.zeros(outputs))
        self.feature_centre, self.feature_unit = nn.Buffer(torch.zeros(features)), nn.Buffer(torch.zeros(features))
        self.lowest, self.highest = nn.Buffer(torch.zeros(features)), nn.Buffer(torch.zeros(features))
        self.trust, self.weights = nn.Buffer(torch.zeros(outputs)), nn.Buffer(torch.zeros(features, outputs))
        self.offset, self.mean_noise = nn.Buffer(torch.zeros(outputs)), nn.Buffer(torch.zeros(outputs))
        self.shares, self.bounds = nn.Buffer(torch.zeros(places)), nn.Buffer(torch.zeros(places))
        self.taught = nn.Buffer(torch.zeros(outputs))
        self.separate = separate

    @property
    def measured(self) -> bool:
        """Whether centre and unit of the targets were learnt. Remembered, as looking makes the host wait."""
        if not self._measured:
            self._measured = bool((self.unit > 0).all())
        return self._measured

    def average(self, evidence: Evidence | TrainingOutputs) -> tuple[Tensor, Tensor | None]:
        """Return m, [B, D], and ln of the mean of both networks' variances; None for it where they give none."""
        plain, plain_logs = self.separate(evidence.plain)
        attached, attached_logs = self.separate(evidence.attached)
        mean = torch.lerp(plain, attached, self.trust)
        if plain_logs is None or attached_logs is None:
            return mean, None
        return mean, torch.stack([plain_logs, attached_logs]).logsumexp(0) - torch.tensor(2.0).log()

    def _features(self, evidence: Evidence | TrainingOutputs) -> Tensor:
        value = (self.average(evidence)[0] - self.centre) / self.unit
        columns = [value, value.square()] + ([] if evidence.last is None else [evidence.last.float()])
        return torch.cat(columns, dim=1)

    def log_noise(self, evidence: Evidence | TrainingOutputs) -> Tensor:
        """Return ln a(x)^2 in units of the targets, [B, D]."""
        own_logs = self.average(evidence)[1]
        if own_logs is not None:
            return own_logs + self.offset
        scaled = (self._features(evidence) - self.feature_centre) / self.feature_unit
        inside = scaled.maximum(self.lowest).minimum(self.highest)  # cut to where the data are
        return inside @ self.weights + self.offset + 2 * self.unit.log()

    def outside(self, variances: Tensor) -> Tensor:
        """Return o = max_k max(0, v_k / Q_k - 1), [B, 1]."""
        return (variances - self.bounds).amax(1, keepdim=True).clamp(0.0, LARGEST).expm1()

    def forward(self, evidence: Evidence) -> Tensor:
        """Return m, a and e in units of the targets, [B, 3 D]; never in half precision."""
        outside = self.outside(evidence.variances)
        logs = self.log_noise(evidence)
        usual = (self.mean_noise * self.unit.square()).log()
        logs = logs + outside / (1 + outside) * (usual - logs).clamp_min(0)
        noise = (logs / 2).exp().maximum(LEAST * self.unit)
        posterior = (evidence.variances.clamp(max=LARGEST).exp() * self.shares).mean(1, keepdim=True)
        unknown = (posterior * self.mean_noise + outside * self.taught).sqrt() * self.unit
        return torch.cat([self.average(evidence)[0], noise, unknown], dim=1)

    # -- learning -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(self, targets: Tensor) -> None:
        """Set centre and unit of the targets from some of them, [N, D]."""
        centre, unit = centre_and_unit(targets)
        self.centre.copy_(centre)
        self.unit.copy_(unit)
        self._measured = True

    @torch.no_grad()
    def learn(
        self,
        training: TrainingOutputs,
        ordinary: Evidence,
        targets: Tensor,
        outliers: Sequence[Evidence],
        widths: Sequence[int],
        inputs: int,
    ) -> None:
        """Set all buffers but centre and unit of the targets.

        training  of inputs that the attachments were fitted to
        ordinary  of held-out inputs, whose targets are ``targets``
        outliers  of destroyed inputs; empty where there are none
        widths    how many features each place has
        inputs    how many inputs the closed form was learnt from
        """
        plain, attached = (self.separate(each)[0] for each in (ordinary.plain, ordinary.attached))
        change = attached - plain
        best = ((targets - plain) * change).sum(0) / change.square().sum(0).clamp_min(1e-30)
        self.trust.copy_(best.nan_to_num().clamp(0, 1))
        features = self._features(training)
        self.feature_centre.copy_(features.mean(0))
        unit = features.std(0, correction=0)
        self.feature_unit.copy_((unit + FINEST * unit.mean()).clamp_min(1e-6))
        scaled = ((features - self.feature_centre) / self.feature_unit).clamp(-CUT, CUT)
        self.lowest.copy_(scaled.amin(0))
        self.highest.copy_(scaled.amax(0))
        for buffer in (self.weights, self.offset, self.taught):
            buffer.zero_()
        mean, own_logs = self.average(training)
        if own_logs is None:
            squares = ((training.targets - mean) / self.unit).square()
            weights = [log_variance(scaled, column, RIDGE)[:-1] for column in squares.unbind(1)]
            self.weights.copy_(torch.stack(weights, dim=1))
        error = (targets - self.average(ordinary)[0]).square()
        least = (LEAST * self.unit).square()
        ratio = (error / self.log_noise(ordinary).exp()).mean(0)
        self.offset.copy_(ratio.clamp_min(1e-12).log())
        self.mean_noise.copy_(error.mean(0).maximum(least) / self.unit.square())
        self.shares.copy_(torch.tensor([min(1.0, width / max(1, inputs)) for width in widths]))
        self.bounds.copy_(ordinary.variances.amax(0))
        for evidence in outliers:
            self.taught.copy_(self._likeliest(evidence))

    def _likeliest(self, evidence: Evidence) -> Tensor:
        """Return the ``taught`` for which "any value" is the likeliest on outliers, [outputs]."""
        _, noise, unknown = self(evidence).chunk(3, dim=1)
        usual = ((noise.square() + unknown.square()) / self.unit.square())[None]
        error = 1 + ((self.average(evidence)[0] - self.centre) / self.unit).square()[None]
        candidates = torch.logspace(-4, 2, 61, device=error.device)
        variance = usual + candidates[:, None, None] * self.outside(evidence.variances)[None]
        loss = (variance.log() + error / variance).mean(1)
        return candidates[loss.argmin(0)]


def centre_and_unit(targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of targets, [N, D]; the unit is 1 where all are the same."""
    unit = targets.std(0, correction=0)
    return targets.mean(0), torch.where(unit > 1e-6 * (1e-6 + targets.abs().amax(0)), unit, torch.ones_like(unit))


def log_variance(features: Tensor, squares: Tensor, ridge: float, prior: Tensor | None = None) -> Tensor:
    """Return the most probable w and, last, offset of ln variance l = offset + w' f given squared residuals r^2, [F +
    1].

    They minimise 1/2 sum_i [l_i + r_i^2 exp(-l_i)] + ridge / 2 |w - prior|^2. It is convex; Newton's method finds them.
    """
    x = torch.cat([features, torch.ones_like(features[:, :1])], dim=1).cpu().double()  # MPS has no float64
    r = squares.cpu().double()
    r = r.clamp_min(1e-12 * float(r.mean()) + 1e-30)
    start = torch.zeros(x.shape[1], dtype=x.dtype)
    if prior is not None:
        start[:-1] = prior
    penalty = torch.full_like(start, ridge)
    penalty[-1] = 1e-6
    w = start.clone()
    w[-1] = (r * (-(x @ w)).exp()).mean().log()

    def loss(w: Tensor) -> Tensor:
        logs = x @ w
        return (logs + r * (-logs).exp()).sum() / 2 + (penalty * (w - start).square()).sum() / 2

    before = loss(w)
    for _ in range(NEWTON):
        relative = r * (-(x @ w)).exp()
        slope = x.T @ (1 - relative) / 2 + penalty * (w - start)
        curvature = (x * relative[:, None]).T @ x / 2 + penalty.diag()
        step, size = torch.linalg.solve(curvature, slope), 1.0
        while size > 1e-4 and not loss(w - size * step) <= before:
            size /= 2
        if size <= 1e-4:
            break
        w = w - size * step
        after = loss(w)
        if before - after < 1e-9 * (1 + before.abs()):
            break
        before = after
    return w.to(features)
