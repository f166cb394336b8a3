"""torchmetrics classes that collect batches on any device or process, and leave the computing to the functions.

They work wherever torchmetrics does: `MetricCollection`, Lightning's `self.log_dict`, several processes. Only shapes are
checked per batch, so that an update never waits for the GPU; values are checked once, in ``compute``.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from abnn.errors import InputError, MissingExtraError, explain, unknown
from abnn.metrics._arrays import Result, as_count
from abnn.metrics.calibration import DEFAULT_BINS, calibration
from abnn.metrics.detection import detection
from abnn.metrics.misclassification import misclassification
from abnn.metrics.selective import selective
from abnn.metrics.tiers import TierThresholds, tiers
from abnn.networks import vision

with contextlib.suppress(MissingExtraError):
    vision.torchvision()  # torchmetrics imports torchvision where it is installed, and fails where that fails
from torchmetrics import Metric

TIERS = ("id", "semi", "full")


class _Collecting(Metric):
    """Two lists of batches, one entry per input in each; ``_result`` turns them into a record."""

    is_differentiable = False
    full_state_update = False
    first: list[Tensor]
    second: list[Tensor]

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("first", default=[], dist_reduce_fx="cat")
        self.add_state("second", default=[], dist_reduce_fx="cat")

    def compute(self) -> dict[str, Tensor]:
        result = self._result(_joined(self.first), _joined(self.second))
        return {name: torch.tensor(value, dtype=torch.float64) for name, value in result.numbers().items()}

    def _result(self, first: Tensor, second: Tensor) -> Result:
        raise NotImplementedError

    def _collect(self, first: Tensor, second: Tensor | bool | int, names: tuple[str, str], ndim: int = 1) -> None:
        if first.ndim != ndim:
            accepted = f"a {ndim}-d tensor with one row per input"
            raise InputError(explain(names[0], f"a tensor of shape {tuple(first.shape)}", accepted))
        labels = torch.as_tensor(second, device=first.device)
        labels = labels.expand(len(first)) if labels.ndim == 0 else labels
        if labels.shape != first.shape[:1]:
            accepted = f"one value, or a 1-d tensor of {len(first)} values, as many as {names[0]}"
            raise InputError(explain(names[1], f"a tensor of shape {tuple(labels.shape)}", accepted))
        self.first.append(first.detach())
        # Fractions stay: compute() refuses them, and cut off they would pass for other labels.
        self.second.append(labels.detach() if labels.is_floating_point() else labels.detach().long())


class DetectionMetric(_Collecting):
    """`detection` over batches: ``update(scores, is_ood)`` with one flag per input, or one for the whole batch."""

    def update(self, scores: Tensor, is_ood: Tensor | bool) -> None:
        self._collect(scores, is_ood, ("scores", "is_ood"))

    def _result(self, first: Tensor, second: Tensor) -> Result:
        _check_values("is_ood", second, 2, "booleans, or 0 and 1")
        return detection(first[second == 0], first[second != 0])


class SelectiveMetric(_Collecting):
    """`selective` over batches: ``update(scores, correct)``."""

    def update(self, scores: Tensor, correct: Tensor | bool) -> None:
        self._collect(scores, correct, ("scores", "correct"))

    def _result(self, first: Tensor, second: Tensor) -> Result:
        return selective(first, second)


class MisclassificationMetric(SelectiveMetric):
    """`misclassification` over batches: ``update(scores, correct)``."""

    def _result(self, first: Tensor, second: Tensor) -> Result:
        return misclassification(first, second)


class TierMetric(_Collecting):
    """`tiers` over batches: ``update(scores, tier)`` with the tier's name for a batch, or 0, 1, 2 per input."""

    def __init__(self, thresholds: TierThresholds | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.thresholds = thresholds

    def update(self, scores: Tensor, tier: Tensor | str) -> None:
        if isinstance(tier, str) and tier not in TIERS:
            raise unknown("tier", tier, TIERS)
        self._collect(scores, TIERS.index(tier) if isinstance(tier, str) else tier, ("scores", "tier"))

    def _result(self, first: Tensor, second: Tensor) -> Result:
        _check_values("tier", second, 3, "0 (id), 1 (semi) or 2 (full)")
        return tiers(first[second == 0], first[second == 1], first[second == 2], self.thresholds)


class CalibrationMetric(_Collecting):
    """`calibration` over batches: ``update(probs, labels)``."""

    def __init__(self, bins: int = DEFAULT_BINS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.bins = as_count(bins, "bins")

    def update(self, probs: Tensor, labels: Tensor) -> None:
        self._collect(probs, labels, ("probs", "labels"), ndim=2)

    def _result(self, first: Tensor, second: Tensor) -> Result:
        return calibration(first, second, bins=self.bins)


def _check_values(argument: str, values: Tensor, count: int, accepted: str) -> None:
    """Refuse anything but 0, 1, ..., count - 1."""
    odd = values[~torch.isin(values, torch.arange(count, device=values.device, dtype=values.dtype))]
    if odd.numel():
        raise InputError(explain(argument, f"{float(odd[0]):g}", accepted))


def _joined(state: list[Tensor] | Tensor) -> Tensor:
    if isinstance(state, Tensor):  # after a sync between processes
        return state
    if not state:
        raise InputError(explain("update", "no batches", "at least one batch", "Call update before compute."))
    return torch.cat(state)
