"""ODIN: the softmax at a high temperature, after a small step of the input towards its own prediction.

    x' = x + e sign(grad_x ln p_y(x; T)),   y = argmax_k z_k(x),   p(x; T) = softmax(z(x) / T)
    s(x) = -T ln(K max_k p_k(x'; T))

Liang et al. 2018, "Enhancing The Reliability of Out-of-distribution Image Detection in Neural Networks", arXiv:1706.02690, whose
score is the maximum itself; this decreasing function of it gives the same order and keeps its digits where T = 1000 makes all
p_k nearly 1 / K. e = 0.0014 belongs to inputs scaled to about unit variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from abnn.baselines.base import check_positive
from abnn.baselines.posthoc.base import Features, PostHoc, part
from abnn.errors import InputError, explain


def scaled_maximum(logits: Tensor, temperature: float) -> Tensor:
    """-T ln(K max_k softmax(z / T)_k), [N]: between -T ln K, for certain, and 0."""
    logits = logits - logits.amax(1, keepdim=True)
    return temperature * ((logits / temperature).logsumexp(1) - math.log(logits.shape[1]))


def step_to_prediction(network: Callable[[Tensor], Tensor], x: Tensor, temperature: float, step: float) -> Tensor:
    """x + e sign(grad_x ln p_y(x; T)); works inside no_grad and inference_mode too."""
    with torch.inference_mode(False), torch.enable_grad():
        x = x.detach().clone().requires_grad_()
        logits = network(x) / temperature
        (gradient,) = torch.autograd.grad(logits.log_softmax(1).amax(1).sum(), x)
    return x.detach() + step * gradient.sign()


@dataclass
class ODIN(PostHoc):
    name: ClassVar[str] = "odin"
    needs: ClassVar[tuple[str, ...]] = ("network",)
    learns: ClassVar[bool] = False
    temperature: float = 1000.0
    step: float = 0.0014

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)
        if not isinstance(self.step, int | float) or isinstance(self.step, bool) or not 0 <= self.step < math.inf:
            raise InputError(explain("step", repr(self.step), "a number of at least 0"))

    def values(self, features: Features) -> Tensor:
        x, network = part(features.inputs), features.network
        assert network is not None
        if not x.is_floating_point():
            raise InputError(explain("x", f"dtype {x.dtype}", "for 'odin': real numbers, which have a gradient"))
        stepped = step_to_prediction(network, x, self.temperature, self.step)
        with torch.no_grad():
            return scaled_maximum(network(stepped).float(), self.temperature)
