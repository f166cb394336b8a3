from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from abnn.baselines import make_method
from abnn.baselines.p_sgld import Collect, Langevin, Samples, prior_centres, sample_steps
from abnn.networks.by_name import build_backbone
from tests.baselines.samples import TINY, digits, make_run, quick
from tests.conftest import SmallBatchNormNet


def test_a_step_follows_the_formula() -> None:
    lr, decay = 1e-2, 0.9
    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    optimizer = Langevin([w], lr, decay)
    value, v = w.detach().numpy().copy(), None
    for step in range(4):
        g = np.array([0.3, -0.1]) * (step + 1)
        w.grad = torch.tensor(g)
        torch.manual_seed(step)
        noise = torch.randn_like(w).detach().numpy()
        torch.manual_seed(step)
        optimizer.step()
        v = decay * (np.full(2, (g**2).mean()) if v is None else v) + (1 - decay) * g**2
        scale = np.sqrt(v) + 1e-8
        value = value - lr / 2 * g / scale + np.sqrt(lr / scale) * noise
        np.testing.assert_allclose(w.detach().numpy(), value, rtol=1e-12)


class Processes:
    """What the step needs of several processes that have drawn the same numbers."""

    world_size = 4

    def all_reduce(self, numbers: torch.Tensor, reduce_op: str) -> torch.Tensor:
        assert reduce_op == "sum"
        return numbers * self.world_size


def test_noise_of_several_processes_is_their_sum_with_the_deviation_of_one() -> None:
    alone, together = (nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(2))
    for w, fabric in ((alone, None), (together, Processes())):
        w.grad = torch.zeros_like(w) + 0.5
        torch.manual_seed(0)
        Langevin([w], 1e-2, fabric=fabric).step()
    scale = 0.5 + 1e-8  # sqrt(v) = |g| in the first step
    drift = -1e-2 / 2 * 0.5 / scale
    torch.testing.assert_close(together - drift, (alone - drift) * 2)  # four times the same numbers, by sqrt(4)


def test_samples_of_a_gaussian_have_its_mean_and_covariance() -> None:
    """With a preconditioner that hardly moves, the step samples N(m, C) up to a discretisation error of order lr.

    4,000 independent chains: standard errors are 1.6 % of a deviation for means, 2.2 % of a variance for variances; the
    Euler step inflates variances by 1 / (1 - lr A / (4 G)) in every direction, below 1.5 % here.
    """
    torch.manual_seed(0)
    mean = torch.tensor([1.0, -0.5], dtype=torch.float64)
    covariance = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=torch.float64)
    precision = torch.linalg.inv(covariance)
    w = nn.Parameter(torch.randn(4000, 2, dtype=torch.float64))
    optimizer = Langevin([w], lr=0.04, decay=0.9999)
    for _ in range(1200):
        w.grad = (w.detach() - mean) @ precision
        optimizer.step()
    samples = w.detach()
    deviation = covariance.diagonal().sqrt()
    assert torch.all((samples.mean(0) - mean).abs() < 5 * 0.016 * deviation)
    found = torch.cov(samples.T)
    outer = deviation[:, None] * deviation
    assert torch.all(((found - covariance) / outer).abs() < 5 * 0.022 + 0.015)


def test_the_potential_is_the_posterior_of_all_data() -> None:
    method = make_method("p-sgld", prior_sigma=0.5, temperature=0.25)
    network = method.build(lambda: build_backbone(**TINY), digits().x[:1])
    trainable = method.stages(make_run(method, network))[0].make()
    assert isinstance(trainable, Collect)
    x, y = digits()
    losses = trainable.losses(x, y, None)
    with torch.no_grad():
        log_likelihood = network(x).double().log_softmax(1)[torch.arange(96), y].sum()
    prior = 0.0
    for name, value in network.named_parameters():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        prior += (((value.detach().double() - centre) / 0.5) ** 2).sum().item() / 2
    assert losses["likelihood"].item() == pytest.approx(-log_likelihood.item() / 0.25, rel=1e-5)  # N mean = sum here
    assert losses["prior"].item() == pytest.approx(prior / 0.25, rel=1e-5)


def test_priors_of_scales_are_around_one() -> None:
    net = SmallBatchNormNet()
    centres = dict(zip([name for name, _ in net.named_parameters()], prior_centres(net)))
    assert {name for name, centre in centres.items() if centre == 1.0} == {"bn1.weight", "bn2.weight"}


@pytest.mark.parametrize(
    "steps,burn_in,most", [(100, 0.5, 10), (100, 0.0, 7), (6, 0.5, 10), (1, 0.5, 3), (10, 0.99, 2)]
)
def test_samples_are_thinned_evenly_after_the_burn_in(steps: int, burn_in: float, most: int) -> None:
    chosen = sample_steps(steps, burn_in, most)
    assert chosen == sorted(set(chosen)) and 1 <= len(chosen) <= most
    assert chosen[-1] == steps - 1
    assert chosen[0] >= min(int(burn_in * steps), steps - 1)
    gaps = np.diff(chosen)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


def test_prediction_averages_over_the_kept_samples() -> None:
    model = quick(make_method("p-sgld", samples=3, burn_in=0.0), 2)
    samples = model.network
    assert isinstance(samples, Samples) and int(samples.count) == 3
    x = digits().x[:5]
    prediction = model.predict(x)
    by_hand = []
    for number in range(3):
        network = build_backbone(**TINY).eval()
        nn.utils.vector_to_parameters(samples.kept[number], network.parameters())
        with torch.no_grad():
            by_hand.append(network(x).softmax(1))
    assert torch.allclose(prediction.samples, torch.stack(by_hand), atol=1e-6)
    assert torch.allclose(prediction.probs, sum(by_hand) / 3, atol=1e-6)  # type: ignore[arg-type]
    # The last kept sample is where the chain stands.
    now = nn.utils.parameters_to_vector(samples.network.parameters())
    assert torch.equal(samples.kept[2], now.detach())


def test_chains_belong_to_their_seed() -> None:
    torch.manual_seed(1)
    first = quick(make_method("p-sgld", samples=2), 1, seed=3)
    torch.manual_seed(2)
    second = quick(make_method("p-sgld", samples=2), 1, seed=3)
    assert torch.equal(first.network.kept, second.network.kept)  # type: ignore[arg-type]
