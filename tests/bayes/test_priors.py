"""Densities of priors against torch's own, and by numerical integration; what layers make of them is in test_layers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from abnn.bayes.priors import Gaussian, ScaleMixture
from abnn.errors import InputError


@given(weight=st.floats(-20, 20), sigma1=st.floats(0.05, 5), sigma2=st.floats(0.05, 5), pi=st.floats(0.01, 0.99))
def test_mixture_density_is_the_weighted_sum(weight: float, sigma1: float, sigma2: float, pi: float) -> None:
    w = torch.tensor(weight, dtype=torch.float64)
    parts = [
        math.log(pi) + Normal(0.0, sigma1).log_prob(w).item(),
        math.log(1 - pi) + Normal(0.0, sigma2).log_prob(w).item(),
    ]
    expected = max(parts) + math.log1p(math.exp(min(parts) - max(parts)))
    assert math.isclose(ScaleMixture(sigma1, sigma2, pi).log_prob(w).item(), expected, rel_tol=1e-6, abs_tol=1e-6)


def test_priors_integrate_to_one() -> None:
    w = torch.linspace(-60, 60, 400_001, dtype=torch.float64)
    for prior in (Gaussian(2.0), ScaleMixture(3.0, 0.05, 0.4)):
        assert torch.trapezoid(prior.log_prob(w).exp(), w).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Gaussian(0), "sigma"),
        (lambda: Gaussian(math.nan), "sigma"),
        (lambda: Gaussian(math.inf), "sigma"),
        (lambda: ScaleMixture(sigma2=-1), "sigma1, sigma2"),
        (lambda: ScaleMixture(pi=1.0), "pi"),
    ],
)
def test_bad_arguments_are_named(make: Any, named: str) -> None:
    with pytest.raises(InputError, match=rf"^{named}: got .*accepted: "):
        make()
