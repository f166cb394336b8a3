from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from abnn.baselines import make_method
from abnn.baselines.woods import EnergyUnit, SecondHead, WildSteps, Woods, lagrangian, update_constraint
from abnn.networks.by_name import build_backbone
from tests.baselines.samples import TINY, digits, generator, loader, make_run, quick


def solve(
    objective: object, constraints: object, start: list[float], rounds: int = 60
) -> tuple[list[float], list[float]]:
    """Alternate exact inner minimisation and multiplier steps, as training does by epochs."""
    x = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    count = len(constraints(x))  # type: ignore[operator]
    multipliers, penalties = [0.0] * count, [1.0] * count
    for _ in range(rounds):
        inner = torch.optim.LBFGS([x], max_iter=50, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            inner.zero_grad()  # noqa: B023
            terms = [lagrangian(g, m, b) for g, m, b in zip(constraints(x), multipliers, penalties)]  # type: ignore[operator]
            total = objective(x) + torch.stack(terms).sum()  # type: ignore[operator]
            total.backward()
            return total

        inner.step(closure)
        for i, g in enumerate(constraints(x)):  # type: ignore[operator]
            multipliers[i], penalties[i] = update_constraint(g.item(), multipliers[i], penalties[i], 1.0, 1.0)
    return x.tolist(), multipliers


def test_multipliers_find_the_known_solution() -> None:
    """min x^2 + y^2 with x + y >= 2 and x >= 3/2: the solution is (3/2, 1/2) with multipliers 1 and 2."""
    x, multipliers = solve(
        lambda v: (v**2).sum(), lambda v: torch.stack([2 - v[0] - v[1], 1.5 - v[0]]), [0.0, 0.0], rounds=120
    )
    assert x == pytest.approx([1.5, 0.5], abs=1e-4)
    assert multipliers == pytest.approx([1.0, 2.0], abs=1e-3)


def test_a_constraint_that_does_not_bind_has_no_multiplier() -> None:
    x, multipliers = solve(lambda v: ((v - 1) ** 2).sum(), lambda v: v[:1] - 3, [10.0])
    assert x == pytest.approx([1.0], abs=1e-4)
    assert multipliers == pytest.approx([0.0], abs=1e-6)


def test_the_term_is_smooth_where_it_changes_form() -> None:
    g = torch.tensor([-0.5 - 1e-7, -0.5 + 1e-7], dtype=torch.float64, requires_grad=True)  # b g + m = 0 at -m/b
    value = lagrangian(g, 1.0, 2.0)
    assert value[0].item() == pytest.approx(-0.25) and value[1].item() == pytest.approx(-0.25)
    value.sum().backward()
    assert g.grad is not None and g.grad.abs().max().item() < 1e-6


def test_multiplier_steps_and_growing_penalties() -> None:
    assert update_constraint(0.2, 1.0, 2.0, 1.0, 1.5) == pytest.approx((1.2, 3.0))  # violated: both grow
    assert update_constraint(-0.2, 1.0, 2.0, 1.0, 1.5) == pytest.approx(
        (0.8, 2.0)
    )  # kept, still pushing: the multiplier falls
    assert update_constraint(-2.0, 1.0, 2.0, 1.0, 1.5) == pytest.approx((0.5, 2.0))  # far inside: by -m/b
    assert update_constraint(-2.0, 0.0, 2.0, 1.0, 1.5) == pytest.approx((0.0, 2.0))


def energy_steps() -> tuple[WildSteps, EnergyUnit]:
    method = make_method("woods")
    assert isinstance(method, Woods)
    network = method.build(lambda: build_backbone(**TINY), digits().x[:1])
    assert isinstance(network, EnergyUnit)
    torch.nn.init.normal_(network.network.head.weight, generator=generator())  # type: ignore[union-attr,arg-type]
    return WildSteps(make_run(method, network), method), network


def test_one_step_of_the_energy_form() -> None:
    steps, network = energy_steps()
    x, y = digits()
    with torch.no_grad():
        lse = network.network(x).logsumexp(1)
        ce = F.cross_entropy(network.network(x), y)
    steps.begin_epoch(0, lambda: iter(loader(shuffle=False)))
    assert steps.ce_limit == pytest.approx(2 * ce.item(), rel=1e-5)
    assert network.centre.item() == pytest.approx(lse.mean().item(), rel=1e-4)
    assert network.spread.item() == pytest.approx(lse.std().item(), rel=1e-3)
    steps.constraints = {"in": (0.7, 1.5), "ce": (0.3, 2.0)}
    steps.place()
    losses = steps.wild_losses(x, y, generator(1))

    assert steps.run.outliers is not None
    g = generator(1)
    made = steps.run.outliers(x[48:], y[48:], g).x
    chosen = torch.rand(48, generator=g) < 0.1
    assert 0 < chosen.sum() < 20
    wild = torch.where(chosen[:, None, None, None], made, x[48:])
    with torch.no_grad():
        ood = (lse.mean() - network.network(wild).logsumexp(1)) / lse.std()
        inside = torch.sigmoid((lse.mean() - lse[:48]) / lse.std()).mean() - 0.05
        gap = F.cross_entropy(network.network(x[:48]), y[:48]) - 2 * ce
    assert losses["wild"].item() == pytest.approx(torch.sigmoid(-ood).mean().item(), rel=1e-4)
    assert losses["in"].item() == pytest.approx((0.7 * inside + 0.75 * inside**2).item(), rel=1e-4)
    wanted = 0.3 * gap + gap**2 if 2 * gap + 0.3 >= 0 else torch.tensor(-(0.3**2) / 4)
    assert losses["ce"].item() == pytest.approx(wanted.item(), rel=1e-3)


def test_multipliers_move_by_what_all_training_data_says() -> None:
    steps, network = energy_steps()
    steps.begin_epoch(0, lambda: iter(loader(shuffle=False)))
    assert steps.constraints == {"in": (0.0, 1.0), "ce": (0.0, 1.0)}
    steps.ce_limit = 0.1
    steps.begin_epoch(1, lambda: iter(loader(shuffle=False)))
    x, y = digits()
    with torch.no_grad():
        logits, ood = network(x)
        wanted = F.cross_entropy(logits, y).item() - 0.1, torch.sigmoid(ood).mean().item() - 0.05
    assert steps.constraints["ce"] == pytest.approx((wanted[0], 1.5), rel=1e-5)
    assert steps.constraints["in"] == pytest.approx((wanted[1], 1.5), rel=1e-5)


def test_the_authors_form() -> None:
    method = make_method("woods", "authors")
    assert isinstance(method, Woods) and method.score == "max-probability"
    network = method.build(lambda: build_backbone(**TINY), digits().x[:1])
    assert isinstance(network, SecondHead)
    x, y = digits()
    with torch.no_grad():
        logits, ood = network(x)
        assert torch.allclose(logits, network.network(x), atol=1e-6)  # the second head changes no class
    steps = WildSteps(make_run(method, network), method)
    losses = steps.wild_losses(x, y, generator(1))
    inside = F.relu(1 + ood[:48]).mean() - 0.05
    assert losses["in"].item() == pytest.approx((0.5 * inside**2).item(), rel=1e-4)  # multiplier 0, penalty 1
    assert losses["ce"].item() == pytest.approx(F.cross_entropy(logits[:48], y[:48]).item(), rel=1e-5)
    assert losses["wild"].item() > 0


def test_energy_is_its_own_score() -> None:
    model = quick("woods")
    x = digits().x[:6]
    prediction = model.predict(x)
    with torch.no_grad():
        logits = model.network.network(x)  # type: ignore[operator,union-attr]
    assert torch.allclose(prediction.score, -logits.exp().sum(1).log(), atol=1e-5)
    assert prediction.default == "energy"
    assert [history.rows[-1]["epoch"] for history in model.history.values()] == [1, 1]
    assert list(model.history) == ["pretrain", "wild"]


def test_a_trained_network_needs_no_first_stage() -> None:
    model = quick(make_method("woods", pretrain=0.0))
    assert list(model.history) == ["wild"]
    assert math.isfinite(model.history["wild"].last["multiplier_in"])
