"""How far the features of an input lie from those of the training data, over all blocks of the plain backbone.

The mean and the standard deviation of every channel over all positions, for the input of the first block and the output of
every block, side by side give one vector f. With class means m_c and one covariance matrix C shared by all classes (Lee et al. 2018, arXiv:1807.03888),

    distance(x) = min_c sqrt((f - m_c)^T C^-1 (f - m_c) / dim).

Everything is gathered in one pass over the training data; one batch in five is kept out of the moments and gives the
quantiles of the distance on data that the moments have not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from abnn.blocks import Block, evaluating, first_tensor
from abnn.errors import InputError, NotFittedError, explain
from abnn.graft import StandIn, graft

QUANTILES = (0.5, 0.8, 0.95, 0.99)
MAX_FEATURES = 1024
RESERVOIR = 10_000


class FeatureDistance(nn.Module):
    """Statistics of block features and the distance from them."""

    class_means: Tensor
    whitening: Tensor
    white_means: Tensor
    quantiles: Tensor
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
        self.register_buffer("quantiles", torch.zeros(len(QUANTILES)))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))
        self.register_buffer("white_means", torch.zeros(classes, features), persistent=False)
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
        return self.distance(self.features(x))

    def distance(self, features: Tensor) -> Tensor:
        white = features @ self.whitening.T
        gaps = torch.cdist(white, self.white_means, compute_mode="donot_use_mm_for_euclid_dist")
        return gaps.min(dim=1).values / features.shape[1] ** 0.5

    @property
    def gate(self) -> tuple[float, float]:
        """The median distance of held-out ID data, and where an input is outside for certain: see :func:`abnn.scores.gated`."""
        median, usual, _, rare = self.quantiles.tolist()
        return median, rare + (rare - usual)

    @torch.no_grad()
    def _whiten_means(self) -> None:
        """After every change, not with every batch: for a thousand classes it takes longer than the distances."""
        self.white_means.copy_(self.class_means @ self.whitening.T)

    def _load_from_state_dict(self, *args: Any) -> None:
        super()._load_from_state_dict(*args)
        self._whiten_means()

    def known_gate(self) -> tuple[float, float] | None:
        """The gate, or None before the statistics were gathered.

        Remembered until the buffers are written to: reading a value makes the host wait for the device.
        """
        read = self.fitted, self.quantiles
        if any(buffer.is_inference() for buffer in read):  # these do not count how often they were written to
            return self.gate if self.fitted else None
        now = [(buffer, buffer._version) for buffer in read]
        before, value = self.__dict__.get("_known", ([], None))
        if len(before) != 2 or any(a is not b or m != n for (a, m), (b, n) in zip(before, now)):
            value = self.gate if self.fitted else None
            self.__dict__["_known"] = now, value
        return value

    @torch.no_grad()
    def fit(self, batches: Any) -> None:
        """Gather the statistics in one pass over (x, y) batches."""
        moments = _Moments(self.classes, self.class_means.shape[1])
        kept: list[Tensor] = []
        for index, (x, y) in enumerate(batches):
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                given = f"labels from {int(y.min())} to {int(y.max())}"
                raise InputError(explain("y", given, f"class numbers from 0 to {self.classes - 1}"))
            features = self.features(x.to(self.class_means.device)).double().cpu()
            if index % 5 == 4 and sum(map(len, kept)) < RESERVOIR:
                kept.append(features)
            else:
                moments.add(features, y.cpu())
        if moments.origin is None:
            raise InputError(
                explain("batches", "no batch", "at least one (x, y) batch", "Check data set and drop_last.")
            )
        class_means, whitening = moments.finish()
        self.class_means.copy_(class_means)
        self.whitening.copy_(whitening)
        self._whiten_means()
        held_out = torch.cat(kept) if kept else moments.some
        distances = self.distance(held_out.to(self.class_means))
        self.quantiles.copy_(torch.quantile(distances, torch.tensor(QUANTILES, device=distances.device)))
        self.fitted.fill_(True)


class _Moments:
    """Class means and pooled within-class covariance from streamed batches, in float64."""

    def __init__(self, classes: int, features: int) -> None:
        self.counts = torch.zeros(classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, features, dtype=torch.float64)
        self.products = torch.zeros(features, features, dtype=torch.float64)
        self.some = torch.zeros(0, features, dtype=torch.float64)
        self.origin: Tensor | None = None

    def add(self, features: Tensor, y: Tensor) -> None:
        if self.origin is None:  # sums around a typical value lose no digits
            self.origin = features.mean(0)
        if len(self.some) < RESERVOIR:
            self.some = torch.cat([self.some, features])
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
    return torch.cat(torch.std_mean(positions.float(), dim=2, correction=0)[::-1], dim=1)


def _statistics(shape: tuple[int, ...], layout: str) -> int:
    """How many numbers are noted of a tensor."""
    if len(shape) == 2:
        return shape[1]
    return 2 * (shape[-1] if layout == "tokens" else shape[1])
