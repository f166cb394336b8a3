"""How far the features of an input lie from those of the training data, over all blocks with attachments.

The mean and the standard deviation of every channel over all positions, for the input of the first block and the output of
every block with its attachment at mean weights, side by side give one vector f. With class means m_c and one covariance
matrix C shared by all classes (Lee et al. 2018, arXiv:1807.03888),

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
quantiles of distance and misfit on data that the moments have not seen. Where there are fewer batches, or those kept out
have only classes that are in no other, it is one input in five.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from abnn.bayes.gaussians import RESERVOIR, Moments, held_out_of
from abnn.errors import InputError, NotFittedError, explain
from abnn.model.features import largest_value, sketch, sketch_factor

Gathered = tuple[Moments, list[tuple[Tensor, Tensor]], Tensor]
"""Moments, the batches that were kept out of them, and the largest absolute value."""
QUANTILES = (0.5, 0.8, 0.95, 0.99)
MISFIT_QUANTILES = (0.5, 0.95)
NARROWEST = 0.1  # width of a gate, as a share of the median distance
NOWHERE = 1e-2  # a median distance below it is rounding: the features of all inputs are equal


class Gate(NamedTuple):
    """What is usual on held-out ID data, see :func:`abnn.scores.combined.gated`.

    low, high      the median distance, and where an input is outside for certain
    fits, misfits  the median misfit to the true class, and one that is rare
    """

    low: float
    high: float
    fits: float
    misfits: float


class FeatureDistance(nn.Module):
    """Statistics of block features and the distance from them.

    read    what is noted of the first block's input and of all outputs for a batch, see :func:`abnn.model.features.note`
    widths  how many numbers each of these has
    """

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

    def __init__(self, read: Callable[[Tensor], list[Tensor]], widths: Sequence[int], classes: int) -> None:
        super().__init__()
        self.read = read
        self.sketch = sketch_factor(widths)
        self.widths = [-(-width // self.sketch) for width in widths]
        features = sum(self.widths)
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
        """[B, dim] statistics of all blocks."""
        return self.join(self.read(x))

    def join(self, features: Sequence[Tensor]) -> Tensor:
        """[B, dim]: what was read, side by side."""
        return torch.cat([sketch(part.float(), self.sketch) for part in features], dim=1)

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

    def forget(self) -> None:
        """As if nothing had been gathered."""
        self.fitted.fill_(False)

    @property
    def gate(self) -> Gate:
        median, usual, _, rare = self.quantiles.tolist()
        fits, misfits = self.misfit_quantiles.tolist()
        # From a handful of inputs all quantiles are one number; no input is outside by a hair's breadth. Where inputs do not
        # differ, it takes one unit of their features, see Moments.finish().
        narrowest = NARROWEST * abs(median) if abs(median) > NOWHERE else 1.0
        return Gate(median, max(rare + (rare - usual), median + narrowest), fits, max(misfits, fits + narrowest))

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

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads its own buffers."""
        return {name: value for name, value in self.__dict__.items() if name != "_known"}

    def gate_if_fitted(self) -> Gate | None:
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
    def fit(self, batches: Any, fabric: Any = None) -> None:
        """Gather the statistics in one pass over (x, y) batches; with ``fabric``, over those of all its processes."""
        processes = 1 if fabric is None else fabric.world_size
        gathered = self._gather(batches, RESERVOIR // processes)
        if processes > 1:
            gathered = _joined([fabric.broadcast(gathered, src=rank) for rank in range(processes)])
        moments, held_out_batches, largest = gathered
        if moments.origin is None and not held_out_batches:
            raise InputError(
                explain("batches", "no batch", "at least one (x, y) batch", "Check data set and drop_last.")
            )
        held_out, labels = held_out_of(moments, held_out_batches)
        class_means, whitening = moments.finish(self.widths)
        self.class_means.copy_(class_means)
        self.class_shares.copy_(moments.counts / moments.counts.sum())
        self.whitening.copy_(whitening)
        self._prepare()
        self.largest.copy_(largest)
        nothing = held_out.new_zeros(len(held_out), 1)  # none of these inputs is larger than the largest
        places = self.places(nothing.to(self.largest), held_out.to(self.class_means))
        in_moments = moments.counts[labels] > 0  # of the others, nothing is known that an input could fit to
        misfits = places[:, 1:].gather(1, labels[:, None].to(places.device))[in_moments.to(places.device)]
        for quantiles, values, shares in (
            (self.quantiles, places[:, 0], QUANTILES),
            (self.misfit_quantiles, misfits[:, 0], MISFIT_QUANTILES),
        ):
            quantiles.copy_(torch.quantile(values, torch.tensor(shares, device=values.device)))
        self.fitted.fill_(True)

    def _gather(self, batches: Any, room: int) -> Gathered:
        moments = Moments(self.classes, self.class_means.shape[1], room)
        held_out_batches: list[tuple[Tensor, Tensor]] = []
        largest = torch.zeros(())
        for index, (x, y) in enumerate(batches):
            if len(x) == 0:
                continue
            if not 0 <= int(y.min()) <= int(y.max()) < self.classes:
                actual = f"labels from {int(y.min())} to {int(y.max())}"
                raise InputError(explain("y", actual, f"class numbers from 0 to {self.classes - 1}"))
            features = self.features(x.to(self.class_means.device)).cpu().double()  # some devices have no float64
            largest = torch.maximum(largest, largest_value(x).max().cpu())
            if index % 5 == 4 and sum(len(each) for each, _ in held_out_batches) < room:
                held_out_batches.append((features, y.cpu()))
            else:
                moments.add(features, y.cpu())
        return moments, held_out_batches, largest


def _joined(gathered: Sequence[Gathered]) -> Gathered:
    """What several processes have gathered, as if it were one."""
    moments, held_out_batches, largest = gathered[0]
    for others, out, most in gathered[1:]:
        moments.join(others)
        held_out_batches, largest = held_out_batches + out, torch.maximum(largest, most)
    return moments, held_out_batches, largest
