from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence

from abnn.attached import Attached
from abnn.baselines import make_method
from abnn.baselines.base import Minimise
from abnn.baselines.vboe import BayesianHead, prior_sigma
from abnn.networks.by_name import build_backbone
from tests.baselines.samples import TINY, digits, generator, make_run


def test_the_prior_follows_the_number_of_inputs() -> None:
    assert prior_sigma(60_000, 5e-4) == pytest.approx((2 * 5e-4 * 60_000) ** -0.5)
    assert prior_sigma(60_000, 5e-4) ** -2 == pytest.approx(60)


def test_the_loss_of_the_last_layer_form() -> None:
    method = make_method("vboe")
    network = method.build(lambda: build_backbone(**TINY), digits().x[:1])
    assert isinstance(network, BayesianHead)
    run = make_run(method, network)
    trainable = method.stages(run)[0].make()
    assert isinstance(trainable, Minimise) and run.outliers is not None
    x, y = digits()
    losses = trainable.losses(x, y, generator(2))
    assert network.head.draws == 5

    head = network.head
    assert head.bias_mean is not None and head.bias_rho is not None
    p = Normal(0.0, (2 * 5e-4 * 96) ** -0.5)
    kl = kl_divergence(Normal(head.weight_mean, F.softplus(head.weight_rho)), p).sum()
    kl = kl + kl_divergence(Normal(head.bias_mean, F.softplus(head.bias_rho)), p).sum()
    assert losses["weighted_kl"].item() == pytest.approx(0.1 * kl.item() / 96, rel=1e-4)

    made = run.outliers(x, y, generator(2))
    weight, bias = head.weights()
    assert bias is not None
    with torch.no_grad():
        inside = [F.linear(network.trunk(x), weight[s], bias[s]).log_softmax(1) for s in range(5)]
        outside = [F.linear(network.trunk(made.x), weight[s], bias[s]).log_softmax(1) for s in range(5)]
    nll = -sum(each[torch.arange(96), y].mean().item() for each in inside) / 5
    uniform = -sum(each.mean().item() for each in outside) / 5
    assert losses["nll"].item() == pytest.approx(nll, rel=1e-5)
    assert losses["outliers"].item() == pytest.approx(0.5 * uniform, rel=1e-5)


def test_the_authors_form_has_kl_on_id_data_alone() -> None:
    method = make_method("vboe", "authors")
    model = method.build(lambda: build_backbone(**TINY), digits().x[:1])
    assert isinstance(model, Attached)
    trainable = method.stages(make_run(method, model))[0].make()
    assert isinstance(trainable, Minimise)
    losses = trainable.losses(*digits(), generator(2))
    assert set(losses) == {"nll", "weighted_kl", "outliers"}
    assert model.draws == 1  # the outliers' draw came last
    # The sampled KL fluctuates around the exact one by about sqrt(2 * scalars / draws) nats.
    scalars = sum(layer.weight_mean.numel() + layer.bias_mean.numel() for layer in model.layers)  # type: ignore[union-attr,misc]
    exact = model.kl().item()
    assert losses["weighted_kl"].item() * 50_000 == pytest.approx(
        exact, abs=5 * (2 * scalars / 3) ** 0.5 + 0.01 * exact
    )


def test_the_mean_starts_at_the_backbones_head() -> None:
    torch.manual_seed(0)
    backbone = build_backbone(**TINY)
    x = digits().x[:3]
    network = make_method("vboe").build(lambda: backbone, x[:1])
    assert isinstance(network, BayesianHead)
    network.head.weight_noise.zero_()
    assert network.head.bias_noise is not None
    network.head.bias_noise.zero_()
    assert torch.allclose(network.draw_logits(x)[0], backbone(x), atol=1e-6)
