"""What a predicted number is, and how far it may be off: its noise, and how little the data say about the input.

    mean:       m = plain + trust (attached - plain),    trust from 0 to 1 by least squares on data held out of the fit: attachments
                that made predictions worse there do not count. In units of the targets' spread,

    noise:      ln a(x)^2 = offset + w' f(x),    f: the prediction, its square, and what goes into the last layer; each
                standardised and cut to where the data are. w is the most probable one given the residuals r of the data that attachments
                learn from, with w ~ N(0, 1/40); offset is such that r^2 / a^2 is 1 on average over data held out of that fit.
                For a network that says a variance of its own, w' f is the logarithm of that. Outside of the data a
                is moved towards the mean noise s where it is below: with o = max_k max(0, v_k / Q_k - 1), by o / (1 + o).
    not known:  e(x)^2 = s^2 mean_k (d_k / n) v_k + taught max_k max(0, v_k / Q_k - 1).

The first term is the exact posterior variance of a linear attachment at place k with d_k features and n inputs, s^2 the mean noise and
v_k as in :mod:`abnn.bayes.closed_form`. The second is zero wherever held-out inputs lie (Q_k: their largest v_k), and grows without
bound outside; ``taught`` is the likeliest for outliers, whose target is "any value": the distribution of all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from abnn.model.evidence import Evidence

CUT = 4.0
RIDGE = 40.0
NEWTON = 50  # steps at most
LEAST = 1e-6  # of a standard deviation, in units of the targets'
LARGEST = 60.0  # of ln v_k / Q_k
FINEST = 0.1  # unit of a feature, relative to that of all of them: what differs by less is rounding


class Fitted(NamedTuple):
    """Inputs that attachments have learnt from: outputs without and with attachments, what went into the last layer, targets."""

    plain: Tensor
    attached: Tensor
    last: Tensor | None
    targets: Tensor


class Spread(nn.Module):
    """Standard deviations of predicted numbers, see the module.

    outputs   how many numbers are predicted
    places    at how many places variances are read
    readout   how many features go into the last linear layer; None: there is none
    separate  splits outputs into means and logarithms of variances, which are None where the network says none
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
        """Whether centre and unit of the targets are known; looked up once, for that makes the host wait for the device."""
        if not self._measured:
            self._measured = bool((self.unit > 0).all())
        return self._measured

    def average(self, evidence: Evidence | Fitted) -> tuple[Tensor, Tensor | None]:
        """m, [B, D], and ln of the mean variance of both networks, where they say one."""
        (plain, own), (attached, other) = self.separate(evidence.plain), self.separate(evidence.attached)
        mean = torch.lerp(plain, attached, self.trust)
        if own is None or other is None:
            return mean, None
        return mean, torch.stack([own, other]).logsumexp(0) - torch.tensor(2.0).log()

    def _features(self, evidence: Evidence | Fitted) -> Tensor:
        value = (self.average(evidence)[0] - self.centre) / self.unit
        columns = [value, value.square()] + ([] if evidence.last is None else [evidence.last.float()])
        return torch.cat(columns, dim=1)

    def log_noise(self, evidence: Evidence | Fitted) -> Tensor:
        """ln a(x)^2 in units of the targets, [B, D]."""
        own = self.average(evidence)[1]
        if own is not None:
            return own + self.offset
        scaled = (self._features(evidence) - self.feature_centre) / self.feature_unit
        inside = scaled.maximum(self.lowest).minimum(self.highest)  # cut to where the data are
        return inside @ self.weights + self.offset + 2 * self.unit.log()

    def outside(self, variances: Tensor) -> Tensor:
        """max_k max(0, v_k / Q_k - 1), [B, 1]."""
        return (variances - self.bounds).amax(1, keepdim=True).clamp(0.0, LARGEST).expm1()

    def forward(self, evidence: Evidence) -> Tensor:
        """m, a and e in units of the targets, [B, 3 D]; never in half precision."""
        beyond = self.outside(evidence.variances)
        logs = self.log_noise(evidence)
        usual = (self.mean_noise * self.unit.square()).log()
        logs = logs + beyond / (1 + beyond) * (usual - logs).clamp_min(0)
        noise = (logs / 2).exp().maximum(LEAST * self.unit)
        posterior = (evidence.variances.clamp(max=LARGEST).exp() * self.shares).mean(1, keepdim=True)
        squared = posterior * self.mean_noise + beyond * self.taught
        return torch.cat([self.average(evidence)[0], noise, squared.sqrt() * self.unit], dim=1)

    # -- learning -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def measure(self, targets: Tensor) -> None:
        """Take centre and unit of some targets, [N, D]."""
        self.centre.copy_(targets.mean(0))
        spread = targets.std(0, correction=0)
        self.unit.copy_(torch.where(spread > 1e-6 * (1e-6 + targets.abs().amax(0)), spread, torch.ones_like(spread)))
        self._measured = True

    @torch.no_grad()
    def learn(
        self,
        fitted: Fitted,
        ordinary: Evidence,
        targets: Tensor,
        outliers: Sequence[Evidence],
        widths: Sequence[int],
        inputs: int,
    ) -> None:
        """Learn from inputs that attachments were fitted to, from held-out ones with their targets, and from destroyed ones.

        widths, inputs  how many features each place has, and how many inputs the closed form was gathered from
        """
        plain, moved = (self.separate(each)[0] for each in (ordinary.plain, ordinary.attached))
        moved = moved - plain
        best = ((targets - plain) * moved).sum(0) / moved.square().sum(0).clamp_min(1e-30)
        self.trust.copy_(best.nan_to_num().clamp(0, 1))
        features = self._features(fitted)
        self.feature_centre.copy_(features.mean(0))
        unit = features.std(0, correction=0)
        self.feature_unit.copy_((unit + FINEST * unit.mean()).clamp_min(1e-6))
        scaled = ((features - self.feature_centre) / self.feature_unit).clamp(-CUT, CUT)
        self.lowest.copy_(scaled.amin(0))
        self.highest.copy_(scaled.amax(0))
        for buffer in (self.weights, self.offset, self.taught):
            buffer.zero_()
        mean, own = self.average(fitted)
        if own is None:
            residuals = ((fitted.targets - mean) / self.unit).square()
            found = [log_variance(scaled, column, RIDGE)[:-1] for column in residuals.unbind(1)]
            self.weights.copy_(torch.stack(found, dim=1))
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
        """``taught`` for which "any value" is the likeliest on outliers, one for each output."""
        _, noise, unknown = self(evidence).chunk(3, dim=1)
        usual = ((noise.square() + unknown.square()) / self.unit.square())[None]
        error = 1 + ((self.average(evidence)[0] - self.centre) / self.unit).square()[None]
        steps = torch.logspace(-4, 2, 61, device=error.device)
        variance = usual + steps[:, None, None] * self.outside(evidence.variances)[None]
        loss = (variance.log() + error / variance).mean(1)
        return steps[loss.argmin(0)]


def log_variance(features: Tensor, squares: Tensor, ridge: float, prior: Tensor | None = None) -> Tensor:
    """Return w and an offset last, for which ln variance = offset + w' f is the most probable given squared residuals, [F + 1].

    minimises 1/2 sum_i [l_i + r_i^2 exp(-l_i)] + ridge / 2 |w - prior|^2, which is convex, by Newton's method.
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
