from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from abnn.attached import Attached
from abnn.baselines import make_method
from abnn.baselines.base import Minimise
from abnn.baselines.bbp import elbo_terms
from abnn.bayes.layers import BayesLinear, inverse_softplus
from abnn.bayes.priors import Gaussian, ScaleMixture
from abnn.errors import InputError
from abnn.networks.by_name import build_backbone
from tests.baselines.samples import TINY, digits, generator, make_run, quick

NOISE, PRIOR = 0.5, 0.8


def conjugate_model() -> tuple[Tensor, Tensor, BayesLinear]:
    """y = w x + N(0, NOISE^2), w ~ N(0, PRIOR^2), in float64."""
    x = torch.randn(30, 1, generator=generator(), dtype=torch.float64)
    y = 0.9 * x + NOISE * torch.randn(30, 1, generator=generator(1), dtype=torch.float64)
    layer = BayesLinear(1, 1, bias=False, prior=Gaussian(PRIOR)).double()
    # Two draws of +1 and -1 have mean 0 and variance 1: they average a quadratic exactly.
    layer.weight_noise = torch.tensor([1.0, -1.0], dtype=torch.float64).view(1, 2, 1, 1)
    return x, y, layer


def objective(x: Tensor, y: Tensor, layer: BayesLinear) -> Tensor:
    predicted = layer(x, folded=False).unflatten(0, (2, len(x)))
    nll = (((y - predicted) / NOISE) ** 2 / 2 + math.log(NOISE) + 0.5 * math.log(2 * math.pi)).mean()
    return torch.stack(list(elbo_terms(nll, layer.kl(), len(x)).values())).sum()


def posterior(x: Tensor, y: Tensor) -> tuple[float, float]:
    precision = 1 / PRIOR**2 + (x**2).sum().item() / NOISE**2
    return (x * y).sum().item() / NOISE**2 / precision, precision**-0.5


def test_the_elbo_of_a_conjugate_model_is_its_evidence() -> None:
    """At the exact posterior the bound is tight: N times the loss is -ln p(y), by the marginal Gaussian of y."""
    x, y, layer = conjugate_model()
    mean, sigma = posterior(x, y)
    with torch.no_grad():
        layer.weight_mean.fill_(mean)
        layer.weight_rho.fill_(inverse_softplus(sigma))
    covariance = PRIOR**2 * x @ x.T + NOISE**2 * torch.eye(len(x), dtype=torch.float64)
    evidence = torch.distributions.MultivariateNormal(torch.zeros(len(x), dtype=torch.float64), covariance)
    loss = objective(x, y, layer)
    assert len(x) * loss.item() == pytest.approx(-evidence.log_prob(y[:, 0]).item(), rel=1e-10)
    loss.backward()
    assert layer.weight_mean.grad is not None and layer.weight_mean.grad.abs().item() < 1e-12
    assert layer.weight_rho.grad is not None and layer.weight_rho.grad.abs().item() < 1e-12


def test_minimising_finds_the_posterior() -> None:
    x, y, layer = conjugate_model()
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = objective(x, y, layer)
        loss.backward()
        return loss

    optimizer.step(closure)
    mean, sigma = posterior(x, y)
    assert layer.weight_mean.item() == pytest.approx(mean, rel=1e-4)
    assert layer.weight_sigma.item() == pytest.approx(sigma, rel=1e-3)


@pytest.mark.parametrize("variant,size", [("reference", 96), ("authors", 50_000)])
def test_the_loss_of_a_step(variant: str, size: int) -> None:
    method = make_method("bbp", variant)
    model = method.build(lambda: build_backbone(**TINY), digits().x[:1])
    assert isinstance(model, Attached)
    assert all(layer.prior == Gaussian(0.1) for layer in model.layers)
    trainable = method.stages(make_run(method, model))[0].make()
    assert isinstance(trainable, Minimise)
    x, y = digits()
    losses = trainable.losses(x, y, None)
    assert model.draws == 3
    with torch.no_grad():
        logits = model.draw_logits(x).double()  # the draws of the loss are still held
        nll = -sum(each.log_softmax(1)[torch.arange(96), y].mean().item() for each in logits) / 3
    kl = 0.0
    for layer in model.layers:
        for mean, rho, noise in (
            (layer.weight_mean, layer.weight_rho, layer.weight_noise),
            (layer.bias_mean, layer.bias_rho, layer.bias_noise),
        ):
            assert mean is not None and rho is not None and noise is not None
            q = torch.distributions.Normal(mean.double(), torch.nn.functional.softplus(rho.double()))
            p = torch.distributions.Normal(torch.zeros_like(q.mean), 0.1)
            if variant == "reference":
                kl += torch.distributions.kl_divergence(q, p).sum().item()
            else:
                w = q.mean + q.stddev * noise[0].double()
                kl += (q.log_prob(w) - p.log_prob(w)).sum().item() / 3
    assert losses["nll"].item() == pytest.approx(nll, rel=1e-5)
    assert losses["weighted_kl"].item() == pytest.approx(kl / size, rel=1e-4)


def test_blundells_mixture_is_an_option() -> None:
    method = make_method("bbp", prior_sigma=1.0, prior_sigma2=0.0025, prior_pi=0.25)
    model = quick(method, 1)
    assert isinstance(model.network, Attached)
    assert all(layer.prior == ScaleMixture(1.0, 0.0025, 0.25) for layer in model.network.layers)
    with pytest.raises(InputError, match="pi"):
        make_method("bbp", prior_sigma2=0.1, prior_pi=1.0)


def test_the_kl_starts_where_the_protocol_says() -> None:
    """443,136 scalars of about 3.70 nats each, over 50,000: 32.78; the draw of the start has a spread of 0.02."""
    model = make_method("bbp", "authors").build(
        lambda: build_backbone("paper-resnet", 10, 1), torch.zeros(1, 1, 28, 28)
    )
    assert isinstance(model, Attached)
    assert model.kl().item() / 50_000 == pytest.approx(32.78, abs=0.1)
