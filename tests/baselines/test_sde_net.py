from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from abnn.baselines import make_method
from abnn.baselines.sde_net import SDENet, SDENetMethod, SDESteps, euler_maruyama, logit_std
from abnn.networks.by_name import PaperResNet, build_backbone
from abnn.predict.compiling import compiled
from tests.baselines.samples import TINY, digits, generator, make_run, quick


def test_euler_maruyama_of_a_linear_equation() -> None:
    """dh = a h dt + g dW gives h_n = (1 + a dt)^n h_0 + sum_k (1 + a dt)^(n-1-k) g sqrt(dt) n_k."""
    a, g, dt, n = -0.7, 0.4, 0.25, 9
    h = torch.randn(5, 3, generator=generator(), dtype=torch.float64)
    noise = torch.randn(n, 5, 3, generator=generator(1), dtype=torch.float64)
    end = euler_maruyama(h, lambda t, v: a * v, torch.tensor(g, dtype=torch.float64), list(noise), dt)
    factor = 1 + a * dt
    wanted = factor**n * h + sum(factor ** (n - 1 - k) * g * dt**0.5 * noise[k] for k in range(n))
    torch.testing.assert_close(end, wanted, rtol=1e-12, atol=1e-12)


def test_euler_maruyama_tells_the_drift_its_time() -> None:
    end = euler_maruyama(
        torch.zeros(1), lambda t, v: torch.full_like(v, t), torch.tensor(0.0), [torch.zeros(1)] * 4, 0.5
    )
    assert end.item() == pytest.approx(0.5 * (0 + 0.5 + 1.0 + 1.5))


def test_the_variance_of_brownian_motion() -> None:
    """Without drift h is N(h_0, g^2 T): 20,000 paths, so the variance is right to 1 % (standard error), 5 allowed."""
    noise = torch.randn(6, 20_000, generator=generator())
    end = euler_maruyama(torch.zeros(20_000), lambda t, v: torch.zeros_like(v), torch.tensor(0.3), list(noise), 0.5)
    assert end.var().item() == pytest.approx(0.09 * 3, rel=0.05)


def make_net() -> SDENet:
    torch.manual_seed(0)
    network = build_backbone(**TINY)
    assert isinstance(network, PaperResNet)
    torch.nn.init.normal_(network.head.weight, std=0.3)
    return SDENet(network, 2)


def test_the_network_is_the_equation() -> None:
    net, x = make_net(), digits().x[:4]
    noise = torch.randn(3, net.depth, 1, 8, 8, 8, generator=generator())
    with torch.no_grad():
        logits, g = net.draw_logits(x, 0.5, noise)
        h0 = net.stem(x)
        assert torch.allclose(g, net.diffusion(h0).sigmoid())
        dt = 6 / net.depth
        for draw in range(3):
            h = h0
            for k in range(net.depth):
                h = h + net.drift(k * dt, h) * dt + 0.5 * g[:, None, None, None] * dt**0.5 * noise[draw, k]
            wanted = net.head(F.relu(net.norm(h)).mean(dim=(2, 3)))
            assert torch.allclose(logits[draw], wanted, atol=1e-5)


def test_time_is_a_further_channel() -> None:
    net = make_net()
    h = torch.randn(2, 8, 8, 8, generator=generator())
    conv = net.drift.convs[0]
    with torch.no_grad():
        wanted = F.conv2d(torch.cat([torch.full((2, 1, 8, 8), 2.5), h], 1), conv.weight, conv.bias, padding=1)  # type: ignore[arg-type]
        assert torch.allclose(conv.at(2.5, h), wanted, atol=1e-6)  # type: ignore[operator]


def test_the_two_steps_move_their_own_parts() -> None:
    net = make_net()
    method = make_method("sde-net", sigma=0.1)
    assert isinstance(method, SDENetMethod)
    steps = SDESteps(make_run(method, net), method)
    x, y = digits()
    with torch.no_grad():
        inside = -torch.log(1 - net.diffusion(net.stem(x)).sigmoid()).mean()

    def changed(step: object) -> set[str]:
        before = {name: value.detach().clone() for name, value in net.named_parameters()}
        step()  # type: ignore[operator]
        return {name.split(".")[0] for name, value in net.named_parameters() if not torch.equal(before[name], value)}

    loss = steps.diffusion_loss(x, 0.0)
    assert loss.item() == pytest.approx(inside.item(), rel=1e-4)
    assert changed(lambda: steps.update(loss, "diffusion")) == {"diffusion"}
    ce = steps.id_loss(x, y, None)["cross_entropy"]
    assert changed(lambda: steps.update(ce, "network")) == {"stem", "drift", "norm", "head"}
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.no_cover
def test_losses_are_compiled_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that compiling does but the generation of code."""
    counted: list[Any] = []
    original = torch.compile

    def eager(function: Any, **how: Any) -> Any:
        counted.append(function)
        return original(function, backend="eager", dynamic=how["dynamic"])

    monkeypatch.setattr(torch, "compile", eager)
    method = make_method("sde-net", sigma=0.1)
    assert isinstance(method, SDENetMethod)
    x, y = digits()
    found = []
    for wanted in (False, True):
        net = make_net()
        with compiled(method.compilable(net), wanted):
            steps = SDESteps(make_run(method, net), method)
            torch.manual_seed(0)
            found.append({name: loss.item() for name, loss in steps.step(x[:16], y[:16], generator()).items()})
    assert len(counted) >= 2
    assert found[1] == pytest.approx(found[0], rel=1e-4)


def test_noise_of_training_is_the_references() -> None:
    method = make_method("sde-net")
    run = make_run(method, make_net())
    made = run.make_outliers(torch.zeros(400, 1, 8, 8), torch.zeros(400, dtype=torch.long), generator()).x
    assert made.std().item() == pytest.approx(2, rel=0.02)


def test_scores_from_the_noise_draws() -> None:
    logits = torch.randn(6, 5, 3, generator=generator())
    values = logits.numpy()
    chosen = values.mean(0).argmax(1)
    wanted = [values[:, row, chosen[row]].std(ddof=1) for row in range(5)]
    np.testing.assert_allclose(logit_std(logits).numpy(), wanted, rtol=1e-5)
    assert torch.equal(logit_std(logits[:1]), torch.zeros(5))


def test_diffusion_learns_to_tell_noise() -> None:
    rates: dict[str, Any] = {"optimizer": "adam", "lr": 1e-2, "diffusion_lr": 1e-2, "schedule": "cosine"}
    model = quick(make_method("sde-net", sigma=1.0, test_sigma=5.0, **rates), 20)
    x = digits().x
    noisy = x + 2 * torch.randn(x.shape, generator=generator(9))
    inside = model.predict(x, draws=2, score="diffusion").score
    outside = model.predict(noisy, draws=2, score="diffusion").score
    assert inside.mean() < 0.2 and outside.mean() > 0.8
    spread = [model.predict(part, draws=8, score="logit-std").score.mean() for part in (x, noisy)]
    assert spread[0] < spread[1]
