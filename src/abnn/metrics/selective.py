"""Selective prediction: answer only the most certain inputs, and see how often the answers are wrong.

Sort by score, most certain first. Answering the first k of n inputs has coverage k / n and risk (errors among the k) / k.
Inputs with equal scores have no order, so the number of errors among the first k is taken as its expectation when the
tied inputs are answered in random order. That makes every number exact, and independent of the order of the input.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from abnn.metrics._arrays import ArrayLike, Bools, Floats, Result, scores_and_correct
from abnn.metrics.detection import tally


@dataclass(frozen=True)
class Selective(Result):
    """Areas under curves of risk over coverage: smaller is better.

    AUGRC (Traub et al., 2024) is also (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 with accuracy a and the AUROC of `misclassification`.
    Geifman et al. (2019) approximate the optimal AURC by r + (1 - r) ln(1 - r) for error rate r; here it is exact.
    """

    error_rate: float  # the risk at full coverage
    aurc: float  # area under the risk-coverage curve, (1/n) sum_k risk(k / n) (Geifman and El-Yaniv, 2017)
    optimal_aurc: float  # the least that any order of the same right and wrong predictions has: all errors last
    excess_aurc: float  # aurc - optimal_aurc
    augrc: float  # area under the generalised risk, P(answered and wrong), over coverage, by trapezoids


@dataclass(frozen=True, eq=False)
class RiskCoverage(Result):
    """``risk[k - 1]`` is the expected share of wrong answers among the k most certain inputs, at ``coverage`` k / n."""

    coverage: Floats
    risk: Floats


def selective(scores: ArrayLike, correct: ArrayLike) -> Selective:
    """All selective-prediction metrics, from one sort."""
    values, right = scores_and_correct(scores, correct)
    errors, n = _expected_errors(values, right), len(right)
    errors_last = np.maximum(np.arange(1, n + 1) - np.count_nonzero(right), 0).astype(np.float64)
    area, optimum = _aurc(errors), _aurc(errors_last)
    return Selective(
        error_rate=float(np.mean(~right)),
        aurc=area,
        optimal_aurc=optimum,
        excess_aurc=max(0.0, area - optimum),  # below zero only by rounding
        augrc=float((np.sum(errors) - errors[-1] / 2) / n**2),
    )


def risk_coverage(scores: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """The whole curve, one point per number of answered inputs."""
    errors = _expected_errors(*scores_and_correct(scores, correct))
    answered = np.arange(1, len(errors) + 1)
    return RiskCoverage(coverage=answered / len(errors), risk=errors / answered)


def _expected_errors(values: Floats, right: Bools) -> Floats:
    """Expected number of errors among the k most certain inputs, k = 1..n: linear inside a group of equal scores."""
    counts = tally(values, values[~right])
    ends = np.append(0, counts.at_most[0])
    errors = np.append(0, counts.at_most[1])
    return np.interp(np.arange(1, len(values) + 1), ends, errors)


def _aurc(errors: Floats) -> float:
    return float(np.mean(errors / np.arange(1, len(errors) + 1)))
