"""Threshold: a plain network and its largest class probability.

    train   minimise  - 1/B sum_b ln p(y_b | x_b)
    score   1 - max_k p(k | x)

Hendrycks and Gimpel 2017, "A Baseline for Detecting Misclassified and Out-of-Distribution Examples in Neural Networks"
(arXiv:1610.02136). Training settings of the SDE-Net experiments, which the authors kept: SGD with learning rate 0.1, a
tenth of it after each quarter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from abnn.baselines.base import Method


@dataclass(frozen=True, kw_only=True)
class Threshold(Method):
    name: ClassVar[str] = "threshold"
