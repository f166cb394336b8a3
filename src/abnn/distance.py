"""How far the features of an input lie from those of the training data, over all blocks of the plain backbone.

The mean and the standard deviation of every channel over all positions, for the input of the first block and the output of
every block, side by side give one vector f. With class means m_c and one covariance matrix C shared by all classes (Lee et
al. 2018, arXiv:1807.03888),

    d_c = (f - m_c)^T C^-1 (f - m_c),    distance(x) = max(1, |x| / r) min_c sqrt(d_c / dim),

where |x| is the largest absolute value of an input and r the largest of the training data: normalisation layers remove the
scale of what goes into them, so that features alone cannot tell an input from the same one times 5000.

How badly an input fits to a class c is its distance from that class relative to its distance d_0 from all data taken as one
Gaussian with mean m and covariance C + B, B = sum_c p_c (m_c - m)(m_c - m)^T (Ren et al. 2021, arXiv:2106.09022):

    misfit_c(x) = (d_c - d_0) / dim.

What is unusual about an input, but no more so for one class than for another, cancels: with W^T W = C^-1 only directions
between class means are left. With an orthonormal basis Q of these, s = Q^T W (f - m) and s_c = Q^T W (m_c - m),

    d_c - d_0 = |s - s_c|^2 - s^T (I + sum_c p_c s_c s_c^T)^-1 s.

Everything is gathered in one pass over the training data; one batch in five is kept out of the moments and gives the
quantiles of distance and misfit on data that the moments have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from abnn.blocks import Block, evaluating, first_tensor
from abnn.errors import InputError, NotFittedError, explain
from abnn.graft import StandIn, graft

QUANTILES = (0.5, 0.8, 0.95, 0.99)
MISFIT_QUANTILES = (0.5, 0.95)
MAX_FEATURES = 1024
RESERVOIR = 10_000


class Gate(NamedTuple):
    """What is usual on held-out ID data, see :func:`abnn.scores.gated`.

    low, high      the median distance, and where an input is outside for certain
    fits, misfits  the median misfit to the true class, and one that is rare
    """

    low: float
    high: float
    fits: float
    misfits: float


class FeatureDistance(nn.Module):
    """Statistics of block features and the distance from them."""

    class_means: Tensor
    class_shares: Tensor
    whitening: Tensor
    centre: Tensor
    white_means: Tensor
    basis: Tensor
    class_places: Tensor
    pull: Tensor
    largest: Tensor
    quantiles: Tensor
    misfit_quantiles: Tensor
    fitted: Tensor

    def __init__(self, backbone: nn.Module, blocks: Sequence[Block], classes: int) -> None:
        super().__init__()
        recorders = {block.module: _Recorder(block, first=block is blocks[0]) for block in blocks}
        self.__dict__["_view"] = graft(backbone, recorders)  # not registered: its parameters are the backbone's
        self.__dict__["_recorders"] = list(recorders.values())
        widths = [_statistics(blocks[0].input, blocks[0].layout)]
        widths += [_statistics(block.output, block.layout) for block in blocks]
        self.sketch = max(1, -(-sum(widths) // MAX_FEATURES))
        features = sum(-(-width // self.sketch) for width in widths)
        self.register_buffer("class_means", torch.zeros(classes, features))
        self.register_buffer("whitening", torch.zeros(features, features))
        self.register_buffer("class_shares", torch.zeros(classes))
        self.register_buffer("largest", torch.zeros(()))
        self.register_buffer("quantiles", torch.zeros(len(QUANTILES)))
        self.register_buffer("misfit_quantiles", torch.zeros(len(MISFIT_QUANTILES)))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        # What follows from the others: m, W (m_c - m), Q, s_c and the inverse matrix of the formulas above.
        self.register_buffer("centre", torch.zeros(features), persistent=False)
        self.register_buffer("white_means", torch.zeros(classes, features), persistent=False)
        between = min(classes, features)
        self.register_buffer("basis", torch.zeros(features, between), persistent=False)
        self.register_buffer("class_places", torch.zeros(classes, between), persistent=False)
        self.register_buffer("pull", torch.zeros(between, between), persistent=False)
        self.classes = classes

    def features(self, x: Tensor) -> Tensor:
        """[B, dim] statistics of all blocks for one pass of the plain backbone."""
        view, recorders = self.__dict__["_view"], self.__dict__["_recorders"]
        with evaluating(view):
            view(x)
        return self.join([noted for recorder in recorders for noted in recorder.take()])

    def join(self, noted: Sequence[Tensor]) -> Tensor:
        """[B, dim]: what was noted of the first block's input and of all outputs, see :func:`note`, side by side."""
        return torch.cat([sketch(part.float(), self.sketch) for part in noted], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """The distance of each input."""
        if not self.fitted:
            raise NotFittedError(
                "distance: no statistics of the training data yet; run abnn.fit(model, loader), which gathers them, "
                "or model.distance.fit(loader)."
            )
        return self.places(x, self.features(x))[:, 0]

    def places(self, x: Tensor, features: Tensor) -> Tensor:
        """[B, 1 + classes]: the distance of each input, and how badly it fits to each class; never in half precision."""
        with torch.autocast(features.device.type, enabled=False):
            return self._places(x, features)

    def _places(self, x: Tensor, features: Tensor) -> Tensor:
        dimensions = features.shape[1]
        white = (features - self.centre) @ self.whitening.T
        gaps = torch.cdist(white, self.white_means, compute_mode="donot_use_mm_for_euclid_dist")
        scale = (largest_value(x) / self.largest.clamp_min(1e-12)).clamp_min(1)
        distance = scale * gaps.amin(1, keepdim=True) / dimensions**0.5
        between = white @ self.basis
        to_classes = torch.cdist(between, self.class_places, compute_mode="donot_use_mm_for_euclid_dist")
        to_all = ((between @ self.pull) * between).sum(1, keepdim=True)
        misfit = (to_classes.square() - to_all) / dimensions
        return torch.cat([distance, misfit], dim=1)

    @property
    def gate(self) -> Gate:
        median, usual, _, rare = self.quantiles.tolist()
        return Gate(median, rare + (rare - usual), *self.misfit_quantiles.tolist())

    @torch.no_grad()
    def _prepare(self) -> None:
        """After every change, not with every batch: for a thousand classes it takes longer than the distances."""
        shares, means = self.class_shares.cpu().double(), self.class_means.cpu().double()
        centre = shares @ means
        self.centre.copy_(centre)
        white = (means - centre) @ self.whitening.cpu().double().T
        self.white_means.copy_(white)
        basis = torch.linalg.qr(white.T).Q
        self.basis.copy_(basis)
        places = white @ basis
        self.class_places.copy_(places)
        spread = (shares[:, None] * places).T @ places
        self.pull.copy_(torch.linalg.inv(torch.eye(len(spread)).to(spread) + spread))

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._prepare()

    def known_gate(self) -> Gate | None:
        """The gate, or None before the statistics were gathered.

        Remembered until the buffers are written to: reading a value makes the host wait for the device.
        """
        read = self.fitted, self.quantiles, self.misfit_quantiles
        if any(buffer.is_inference() for buffer in read):  # these do not count how often they were written to
            return self.gate if self.fitted else None
        now = [(buffer, buffer._version) for buffer in read]
        before, value = self.__dict__.get("_known", ([], None))
        if len(before) != len(now) or any(a is not b or m != n for (a, m), (b, n) in zip(before, now)):
            value = self.gate if self.fitted else None
            self.__dict__["_known"] = now, value
        return value

    @torch.no_grad()
    def fit(self, batches: Any) -> None:
        """Gather the statistics in one pass over (x, y) batches."""
        moments = _Moments(self.classes, self.class_means.shape[1])
        kept: list[tuple[Tensor, Tensor]] = []
        largest = torch.zeros(())
        for index, (x, y) in enumerate(batches):
            if len(x) == 0:
                continue
            if not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                given = f"labels from {int(y.min())} to {int(y.max())}"
                raise InputError(explain("y", given, f"class numbers from 0 to {self.classes - 1}"))
            features = self.features(x.to(self.class_means.device)).cpu().double()  # some devices have no float64
            largest = torch.maximum(largest, largest_value(x).max().cpu())
            if index % 5 == 4 and sum(len(each) for each, _ in kept) < RESERVOIR:
                kept.append((features, y.cpu()))
            else:
                moments.add(features, y.cpu())
        if moments.origin is None:
            raise InputError(
                explain("batches", "no batch", "at least one (x, y) batch", "Check data set and drop_last.")
            )
        class_means, whitening = moments.finish()
        self.class_means.copy_(class_means)
        self.class_shares.copy_(moments.counts / moments.counts.sum())
        self.whitening.copy_(whitening)
        self._prepare()
        self.largest.copy_(largest)
        held_out, labels = (torch.cat(parts) for parts in zip(*(kept or moments.some)))
        nothing = held_out.new_zeros(len(held_out), 1)  # none of these inputs is larger than the largest
        places = self.places(nothing.to(self.largest), held_out.to(self.class_means))
        known = moments.counts[labels] > 0  # of the others, nothing is known that an input could fit to
        misfits = places[:, 1:].gather(1, labels[:, None].to(places.device))[known.to(places.device)]
        for quantiles, values, shares in (
            (self.quantiles, places[:, 0], QUANTILES),
            (self.misfit_quantiles, misfits[:, 0], MISFIT_QUANTILES),
        ):
            quantiles.copy_(torch.quantile(values, torch.tensor(shares, device=values.device)))
        self.fitted.fill_(True)


def largest_value(x: Tensor) -> Tensor:
    """max |x| of each input, [B, 1]; 0 for numbers of words and the like, which have no scale."""
    return x.float().abs().flatten(1).amax(1, keepdim=True) if x.is_floating_point() else x.new_zeros(len(x), 1)


class _Moments:
    """Class means and pooled within-class covariance from streamed batches, in float64."""

    def __init__(self, classes: int, features: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)
        self.some: list[tuple[Tensor, Tensor]] = []
        self.origin: Tensor | None = None

    def add(self, features: Tensor, y: Tensor) -> None:
        if self.origin is None:  # sums around a typical value lose no digits
            self.origin = features.mean(0)
        if sum(len(each) for each, _ in self.some) < RESERVOIR:
            self.some.append((features, y))
        features = features - self.origin
        self.counts.index_add_(0, y, torch.ones(len(y), dtype=torch.float64))
        self.sums.index_add_(0, y, features)
        self.products.addmm_(features.T, features)

    def finish(self) -> tuple[Tensor, Tensor]:
        """Class means, and W with W^T W = C^-1, where C is shrunk towards its diagonal."""
        assert self.origin is not None
        means = self.sums / self.counts.clamp_min(1)[:, None]
        count = self.counts.sum().item()
        covariance = (self.products - (means * self.counts[:, None]).T @ means) / max(1.0, count)
        scale = covariance.diagonal().clamp_min(0).sqrt()
        scale = scale.clamp_min(1e-6 * scale.max().clamp_min(1e-12))
        correlation = covariance / scale[:, None] / scale[None, :]
        shrinkage = oas_shrinkage(correlation, count)
        identity = torch.eye(len(scale), dtype=torch.float64)
        correlation = (1 - shrinkage) * correlation + (shrinkage + 1e-6) * identity
        lower = torch.linalg.cholesky(correlation)
        whitening = torch.linalg.solve_triangular(lower, torch.diag(1 / scale), upper=False)
        # Classes that never occurred must not attract anything.
        means = torch.where(self.counts[:, None] > 0, means, torch.full_like(means, 1e6) * scale)
        return means + self.origin, whitening


def oas_shrinkage(correlation: Tensor, count: float) -> float:
    """Oracle-approximating shrinkage towards the identity (Chen et al. 2010, arXiv:0907.4698), for p features:

    rho = [(1 - 2/p) tr(S^2) + tr(S)^2] / [(n + 1 - 2/p) (tr(S^2) - tr(S)^2 / p)], at most 1.
    """
    features = correlation.shape[0]
    square, trace = (correlation**2).sum().item(), correlation.trace().item() ** 2
    below = (count + 1 - 2 / features) * (square - trace / features)
    return 1.0 if below <= 0 else min(1.0, ((1 - 2 / features) * square + trace) / below)


def sketch(features: Tensor, factor: int) -> Tensor:
    """Sums of ``factor`` features with alternating signs: a fixed projection that keeps wide networks affordable."""
    if factor == 1:
        return features
    pad = -features.shape[1] % factor
    padded = torch.cat([features, features.new_zeros(features.shape[0], pad)], dim=1).unflatten(1, (-1, factor))
    signs = 1 - 2 * (torch.arange(factor, device=features.device) % 2)
    return (padded * signs).sum(2)


class _Recorder(StandIn):
    """A block that notes mean and standard deviation of its output, and of its input if it is the first, over positions."""

    def __init__(self, block: Block, first: bool) -> None:
        super().__init__(block.module)
        self.layout = block.layout
        self.first = first
        self.noted: list[Tensor] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else next(iter(kwargs.values()))
        output = self.block(*args, **kwargs)
        tensor = first_tensor(output)
        assert tensor is not None
        self.noted = [note(each, self.layout) for each in ((x, tensor) if self.first else (tensor,))]
        return output

    def take(self) -> list[Tensor]:
        noted, self.noted = self.noted, []
        return noted


def note(tensor: Tensor, layout: str) -> Tensor:
    """Mean and standard deviation of every feature over all positions, [B, 2·features]; what has no positions as it is."""
    if tensor.ndim == 2:
        return tensor
    positions = tensor.flatten(1, -2).transpose(1, 2) if layout == "tokens" else tensor.flatten(2)
    return torch.cat(_mean_and_std(positions), dim=1)


def _mean_and_std(x: Tensor) -> tuple[Tensor, Tensor]:
    """Over the last dimension, in float32; on the CPU first the mean and then the spread around it, each vectorised, which
    ``torch.std_mean`` is not there: it takes ten times as long."""
    if x.is_cuda:
        return _by_sums(x) if x.dtype == torch.bfloat16 else torch.std_mean(x.float(), dim=2, correction=0)[::-1]
    x = x.float()
    mean = x.mean(2)
    return mean, (x - mean[..., None]).square().mean(2).sqrt()


def _by_sums(x: Tensor) -> tuple[Tensor, Tensor]:
    """E[x] and sqrt(E[x^2] - E[x]^2): on CUDA, sums in float32 of bfloat16 without a float32 copy of all features.

    The difference is right to a few times 2^-24 E[x]^2, so a standard deviation to a few times 2^-12 |E[x]| at worst, where
    it is nearly zero; rounding to bfloat16 has moved every value by up to 2^-9 of it.
    """
    mean = x.mean(2, dtype=torch.float32)
    square = torch.linalg.vector_norm(x, dim=2, dtype=torch.float32) ** 2 / x.shape[2]
    return mean, (square - mean**2).clamp_min(0).sqrt()


def _statistics(shape: tuple[int, ...], layout: str) -> int:
    """How many numbers are noted of a tensor."""
    if len(shape) == 2:
        return shape[1]
    return 2 * (shape[-1] if layout == "tokens" else shape[1])
