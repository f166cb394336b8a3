"""Layers against torch's own operations, closed forms and numerical integration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from abnn.bayes.layers import (
    BayesConv,
    BayesLinear,
    Init,
    MeanField,
    bayesian_layers,
    inverse_softplus,
    kl_of,
    with_weights_ready,
)
from abnn.bayes.priors import Gaussian, Prior, ScaleMixture
from abnn.errors import InputError

SPREAD = Init(mean_std=0.5, sigma=0.3, rho_std=0.2)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def conv(rank: int, groups: int, stride: int, bias: bool, draws: int, uses: int = 1) -> BayesConv:
    layer = BayesConv(4, 6, (3,) * rank, (stride,) * rank, groups=groups, bias=bias, init=SPREAD, uses=uses).double()
    layer.resample(draws, generator(1))
    return layer


def reference_conv(layer: BayesConv, rows: Tensor, draw: int) -> Tensor:
    """torch's convolution with the weight written out: mean + ln(1 + e^rho) * noise."""
    weight = layer.weight_mean + torch.log1p(layer.weight_rho.exp()) * layer.weight_noise[0, draw]
    bias = None
    if layer.bias_mean is not None and layer.bias_rho is not None and layer.bias_noise is not None:
        bias = layer.bias_mean + torch.log1p(layer.bias_rho.exp()) * layer.bias_noise[0, draw]
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[layer.rank - 1]
    geometry = layer.geometry
    return function(rows, weight, bias, stride=geometry.stride, padding=geometry.padding, groups=geometry.groups)


@settings(max_examples=40, deadline=None)
@given(
    rank=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 2),
    bias=st.booleans(),
    draws=st.integers(1, 4),
    batch=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_folded_draws_are_torchs_convolutions_one_by_one(
    rank: int, groups: int, stride: int, bias: bool, draws: int, batch: int, seed: int
) -> None:
    torch.manual_seed(seed)
    layer = conv(rank, groups, stride, bias, draws)
    x = torch.randn(draws * batch, 4, *(5, 6, 7)[:rank], dtype=torch.float64)
    expected = torch.cat([reference_conv(layer, rows, s) for s, rows in enumerate(x.chunk(draws))])
    torch.testing.assert_close(layer(x), expected)


@settings(max_examples=40, deadline=None)
@given(
    rank=st.integers(1, 3),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 2),
    draws=st.integers(1, 4),
    batch=st.integers(1, 3),
)
def test_shared_input_equals_repeated_folded_input(rank: int, groups: int, stride: int, draws: int, batch: int) -> None:
    layer = conv(rank, groups, stride, True, draws)
    x = torch.randn(batch, 4, *(5, 6, 7)[:rank], dtype=torch.float64, generator=generator())
    repeated = x.repeat(draws, *[1] * (rank + 1))
    torch.testing.assert_close(layer(x, folded=False), layer(repeated, folded=True))


@settings(max_examples=40, deadline=None)
@given(
    middle=st.lists(st.integers(1, 3), max_size=2),
    bias=st.booleans(),
    draws=st.integers(1, 4),
    batch=st.integers(1, 3),
)
def test_linear_is_torchs_linear_one_by_one(middle: list[int], bias: bool, draws: int, batch: int) -> None:
    layer = BayesLinear(5, 3, bias=bias, init=SPREAD).double()
    layer.resample(draws, generator(1))
    x = torch.randn(draws * batch, *middle, 5, dtype=torch.float64, generator=generator())
    weights, biases = layer.weights()
    expected = [F.linear(r, weights[s], None if biases is None else biases[s]) for s, r in enumerate(x.chunk(draws))]
    torch.testing.assert_close(layer(x), torch.cat(expected))
    shared = x[:batch]
    repeated = shared.repeat(draws, *[1] * (x.ndim - 1))
    torch.testing.assert_close(layer(shared, folded=False), layer(repeated))


@pytest.mark.parametrize("make", [lambda: conv(2, 2, 1, True, 3, uses=2), lambda: BayesLinear(4, 6, uses=2).double()])
def test_each_use_has_noise_of_its_own(make: Any) -> None:
    layer = make()
    layer.resample(3, generator(4))
    first, second = layer.weights(0)[0], layer.weights(1)[0]
    assert not torch.allclose(first, second)
    assert layer.draws == 3 and layer.weight_noise.shape[0] == 2


def test_draws_have_the_mean_and_sigma_of_the_posterior() -> None:
    """Moments over n draws of every weight: the mean is off by N(0, s^2/n), the deviation by about N(0, s^2/2n)."""
    layer = BayesLinear(3, 4, init=Init(mean_std=1.0, sigma=0.5, rho_std=0.5))
    draws = 20_000
    layer.resample(draws, generator(5))
    weight = layer.weights()[0]
    sigma = layer.weight_sigma
    five = 5 / math.sqrt(draws)
    assert ((weight.mean(0) - layer.weight_mean).abs() < five * sigma).all()
    assert ((weight.std(0) - sigma).abs() < five * sigma / math.sqrt(2)).all()


# -- KL ----------------------------------------------------------------------------------------------------------------


def test_closed_form_kl_is_torchs() -> None:
    for prior_sigma in (0.1, 1.0, 3.0):
        layer = BayesConv(2, 3, (3, 3), prior=Gaussian(prior_sigma), init=SPREAD).double()
        assert layer.bias_mean is not None and layer.bias_rho is not None
        expected = sum(
            kl_divergence(Normal(mean, F.softplus(rho)), Normal(0.0, prior_sigma)).sum()
            for mean, rho in ((layer.weight_mean, layer.weight_rho), (layer.bias_mean, layer.bias_rho))
        )
        torch.testing.assert_close(layer.kl(), expected)


def test_monte_carlo_kl_converges_to_the_closed_form() -> None:
    layer = BayesLinear(4, 5, prior=Gaussian(0.7), init=SPREAD).double()
    estimates = []
    for seed in range(200):
        layer.resample(50, generator(seed))
        estimates.append(layer.kl(sampled=True).item())
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - layer.kl().item()) < 4 * error
    assert error < 0.02 * abs(layer.kl().item())


def integrated_kl(mean: float, sigma: float, prior: Prior) -> float:
    w = torch.linspace(mean - 12 * sigma, mean + 12 * sigma, 200_001, dtype=torch.float64)
    log_q = Normal(mean, sigma).log_prob(w)
    return torch.trapezoid(log_q.exp() * (log_q - prior.log_prob(w)), w).item()


def test_scale_mixture_kl_converges_to_numerical_integration() -> None:
    prior = ScaleMixture(1.0, 0.1, 0.3)
    layer = BayesLinear(2, 2, bias=False, prior=prior, init=SPREAD).double()
    exact = sum(
        integrated_kl(m, s, prior)
        for m, s in zip(layer.weight_mean.flatten().tolist(), layer.weight_sigma.flatten().tolist())
    )
    estimates = []
    for seed in range(200):
        layer.resample(100, generator(seed))
        estimates.append(layer.kl().item())
    error = np.std(estimates, ddof=1) / math.sqrt(len(estimates))
    assert abs(np.mean(estimates) - exact) < 4 * error


def test_sampled_kl_counts_the_last_use_only() -> None:
    layer = BayesLinear(3, 2, bias=False, init=SPREAD, uses=3).double()
    layer.resample(2, generator(1))
    before = layer.kl(sampled=True)
    layer.weight_noise[:2] = 99
    torch.testing.assert_close(layer.kl(sampled=True), before)


# -- draws -------------------------------------------------------------------------------------------------------------


def test_seeded_draws_depend_on_their_own_generator_alone() -> None:
    layer = BayesConv(2, 3, (3, 3), uses=2)
    layer.resample_seeded([generator(s) for s in range(5)])
    five = layer.weights(1)
    layer.resample_seeded([generator(3)])
    alone = layer.weights(1)
    assert torch.equal(alone[0][0], five[0][3])
    assert alone[1] is not None and five[1] is not None and torch.equal(alone[1][0], five[1][3])


def test_resample_keeps_the_buffer_where_the_number_stays() -> None:
    layer = BayesLinear(2, 2)
    layer.resample(4)
    held = layer.weight_noise
    layer.resample()
    assert layer.weight_noise is held and layer.draws == 4
    layer.resample(2)
    assert layer.draws == 2


def test_noise_made_in_inference_mode_can_be_trained_with() -> None:
    layer = BayesLinear(2, 2)
    with torch.inference_mode():
        layer.resample(3)
        layer.resample_seeded([generator(s) for s in range(3)])
    layer.resample(3)
    layer(torch.ones(3, 2)).sum().backward()
    assert layer.weight_rho.grad is not None


# -- gradients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_gradients_equal_finite_differences(rank: int, folded: bool) -> None:
    layer: MeanField = BayesLinear(2, 3, init=SPREAD) if rank == 0 else BayesConv(2, 2, (3,) * rank, init=SPREAD)
    layer = layer.double()
    layer.resample(2, generator(1))
    shape = (2,) if rank == 0 else (2, *[3] * rank)
    x = torch.randn(4 if folded else 2, *shape, dtype=torch.float64, generator=generator(), requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]
    values = [parameter.detach().clone().requires_grad_() for parameter in layer.parameters()]

    def output(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters)), (x, folded))

    assert torch.autograd.gradcheck(output, (x, *values), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("prior", [Gaussian(0.5), ScaleMixture()])
def test_kl_gradients_equal_finite_differences(prior: Prior, sampled: bool) -> None:
    layer = BayesLinear(2, 3, prior=prior, init=SPREAD).double()
    layer.resample(3, generator(1))
    loss = layer.kl(sampled)
    loss.backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        flat, step = parameter.data.view(-1), 1e-6
        for index in range(len(flat)):
            kept = flat[index].item()
            with torch.no_grad():
                flat[index] = kept + step
                above = layer.kl(sampled).item()
                flat[index] = kept - step
                below = layer.kl(sampled).item()
                flat[index] = kept
            assert parameter.grad.view(-1)[index].item() == pytest.approx(
                (above - below) / (2 * step), rel=1e-5, abs=1e-6
            )


@pytest.mark.parametrize("sampled", [False, True])
def test_one_sigma_for_all_weights_is_the_same_sigma_everywhere(sampled: bool) -> None:
    """Weights, outputs and KL of a layer with one shared sigma, against a layer that has it for each weight."""
    torch.manual_seed(0)
    cases: list[tuple[Any, Any, Tensor]] = [
        (BayesLinear, (5, 3), torch.randn(8, 5, generator=generator(1))),
        (BayesConv, (4, 6, (3, 3)), torch.randn(8, 4, 5, 5, generator=generator(1))),
    ]
    for kind, arguments, x in cases:
        shared = kind(*arguments, init=Init(0.3, 0.2), prior=Gaussian(0.5), shared=True)
        each = kind(*arguments, init=Init(0.3, 0.2), prior=Gaussian(0.5))
        assert shared.weight_rho.numel() == shared.bias_rho.numel() == 1
        assert shared.weight_noise.shape == each.weight_noise.shape
        with torch.no_grad():
            shared.weight_rho.add_(0.7)
            each.weight_rho.add_(0.7)
            each.weight_mean.copy_(shared.weight_mean)
            each.bias_mean.copy_(shared.bias_mean)
        for layer in (shared, each):
            layer.resample(2, generator(3))
        torch.testing.assert_close(shared(x), each(x))
        torch.testing.assert_close(shared.kl(sampled), each.kl(sampled))
        shared.kl(sampled).backward()
        each.kl(sampled).backward()
        torch.testing.assert_close(
            shared.weight_rho.grad.flatten()[0], each.weight_rho.grad.sum(), rtol=1e-4, atol=1e-4
        )
        with with_weights_ready([shared]):
            torch.testing.assert_close(shared(x), each(x))


# -- initial values and arguments --------------------------------------------------------------------------------------


@given(st.floats(1e-12, 1e3))
def test_inverse_softplus(sigma: float) -> None:
    rho = inverse_softplus(sigma)
    back = math.log1p(math.exp(rho)) if rho < 30 else rho
    assert math.isclose(back, sigma, rel_tol=1e-9)


def test_initial_values() -> None:
    torch.manual_seed(0)
    layer = BayesLinear(300, 300, init=Init(mean_std=0.1, sigma=0.02, rho_std=0.0))
    count = layer.weight_mean.numel()
    assert layer.weight_mean.std().item() == pytest.approx(0.1, rel=5 / math.sqrt(2 * count))
    torch.testing.assert_close(layer.weight_sigma, torch.full_like(layer.weight_sigma, 0.02))
    zero = BayesLinear(3, 3)
    assert not zero.weight_mean.any() and zero.bias_mean is not None and not zero.bias_mean.any()


def test_bayesian_layers_lists_each_once() -> None:
    shared = BayesLinear(2, 2)
    module = torch.nn.ModuleList([shared, torch.nn.Linear(2, 2), torch.nn.Sequential(shared, BayesConv(1, 1, (3,)))])
    assert bayesian_layers(module) == [shared, module[2][1]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Init(sigma=0), "init"),
        (lambda: Init(mean_std=-1), "init"),
        (lambda: Init(rho_std=math.nan), "init"),
        (lambda: BayesConv(4, 4, (3, 3, 3, 3)), "kernel_size"),
        (lambda: BayesConv(4, 6, (3,), groups=4), "groups"),
    ],
)
def test_bad_arguments_are_named(make: Any, named: str) -> None:
    with pytest.raises(InputError, match=rf"^{named}: got .*accepted: "):
        make()


def test_base_class_cannot_be_called() -> None:
    with pytest.raises(NotImplementedError):
        MeanField((2, 2), True, Gaussian(), Init())(torch.ones(1, 2))


def test_layers_say_what_they_are() -> None:
    assert repr(BayesLinear(3, 2)) == "BayesLinear(3, 2, bias=True, draws=1)"
    assert "4, 6, kernel_size=(3,), stride=(2,), groups=2, draws=1" in repr(BayesConv(4, 6, (3,), (2,), groups=2))


# -- all layers of a network at once -----------------------------------------------------------------------------------


def several() -> list[MeanField]:
    layers: list[MeanField] = [
        BayesConv(2, 3, (3, 3), init=SPREAD, uses=3),
        BayesLinear(3, 2, init=SPREAD),
        BayesLinear(2, 2, bias=False, prior=ScaleMixture(), init=SPREAD),
    ]
    for index, layer in enumerate(layers):
        layer.double().resample(4, generator(index))
    return layers


@pytest.mark.parametrize("sampled", [False, True])
def test_kl_of_all_layers_is_the_sum_over_layers(sampled: bool) -> None:
    layers = several()
    together = kl_of(layers, sampled)
    torch.testing.assert_close(together, torch.stack([layer.kl(sampled) for layer in layers]).sum())
    compiled = torch.compile(lambda: kl_of(layers, sampled), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), together)


def test_weights_made_at_once_are_those_of_each_use() -> None:
    layers = several()
    each = [[layer.weights(use) for use in range(layer.uses)] for layer in layers]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    slopes = torch.autograd.grad(_sum_of_squares(each), parameters)
    with with_weights_ready(layers):
        made = [[layer.weights(use) for use in range(layer.uses)] for layer in layers]
        for layer, weights in zip(layers, made):
            assert layer.weights() is weights[0]
    for layer, weights, expected in zip(layers, made, each):
        assert layer.ready is None
        for pair, wanted in zip(weights, expected):
            torch.testing.assert_close(pair, wanted)
    for one, other in zip(torch.autograd.grad(_sum_of_squares(made), parameters), slopes):
        torch.testing.assert_close(one, other)


def _sum_of_squares(made: list[list[tuple[Tensor, Tensor | None]]]) -> Tensor:
    parts = [part for weights in made for pair in weights for part in pair if part is not None]
    return torch.stack([(index + 1) * part.square().sum() for index, part in enumerate(parts)]).sum()
