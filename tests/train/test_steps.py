"""The three steps: each update equals the gradient of its formula, and touches nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from abnn.attached import Attached
from abnn.bayes.priors import Gaussian
from abnn.config import Objective, preset
from abnn.outliers import OutlierBatch
from abnn.train.loss import touching
from abnn.train.steps import EXPLODED, Steps, average_gradients
from tests.conftest import (
    PlainFabric,
    SmallBatchNormNet,
    attach_with,
    generator,
    one_draw_at_a_time,
    randomise_attachments,
    same_state,
)

CLASSES = 3


def far_away(x: Tensor, y: Tensor, generator: torch.Generator) -> OutlierBatch:
    return OutlierBatch(x=4 - 3 * x, y=y, severity=torch.linspace(0.2, 1, len(x)))


def sgd(model: Attached, frozen: bool, lr: float = 1.0) -> dict[str, torch.optim.Optimizer]:
    optimizers: dict[str, torch.optim.Optimizer] = {
        "attachments": torch.optim.SGD([p for _, p in model.attachment_parameters()], lr=lr)
    }
    if not frozen:
        optimizers["backbone"] = torch.optim.SGD([p for _, p in model.backbone_parameters()], lr=lr)
    return optimizers


def make(objective: Objective, frozen: bool = True, outliers: Any = far_away, lr: float = 1.0, **options: Any) -> Steps:
    torch.manual_seed(0)
    network = SmallBatchNormNet()
    with torch.no_grad():
        for _ in range(3):
            network(torch.randn(16, 1, 12, 12))
    options = {"at": ["conv1", "conv2"], **options} if options.get("preset", "default") == "default" else options
    model = randomise_attachments(attach_with(network.eval(), torch.randn(1, 1, 12, 12), **options), 0.05)
    model.state.plain = False  # as within Steps.step(): attachments learn without the plain network
    return Steps(model, objective, outliers, PlainFabric(), sgd(model, frozen, lr))


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 1, 12, 12, generator=generator(1))
    return x, torch.tensor([0, 1, 2, 0, 1, 2])


def attachments(steps: Steps) -> list[Tensor]:
    return [p.detach().clone() for _, p in steps.model.attachment_parameters()]


def expected_gradient(
    model: Attached, draws: int, loss: Callable[[Tensor], Tensor], kl: float, x: Tensor
) -> list[Tensor]:
    """d/d(attachments) of loss(p_s) + kl * KL, with every draw and input computed alone and KL from torch.distributions."""
    twin = copy.deepcopy(model).eval()
    twin.resample(draws)  # the same draws, if the global random state is the same
    probs = one_draw_at_a_time(twin, x).softmax(2)
    total = loss(probs)
    for layer in twin.layers:
        assert isinstance(layer.prior, Gaussian)
        for mean, rho in ((layer.weight_mean, layer.weight_rho), (layer.bias_mean, layer.bias_rho)):
            assert mean is not None and rho is not None
            total = total + kl * kl_divergence(Normal(mean, F.softplus(rho)), Normal(0.0, layer.prior.sigma)).sum()
    return list(torch.autograd.grad(total, [p for _, p in twin.attachment_parameters()]))


def updates(steps: Steps, step: Callable[[], Any], seed: int = 11) -> list[Tensor]:
    before = attachments(steps)
    torch.manual_seed(seed)
    step()
    return [old - new for old, new in zip(before, attachments(steps))]  # lr is 1: the gradient


def check(actual: list[Tensor], expected: list[Tensor]) -> None:
    """Equal up to float32 rounding: of the parameters from which the updates are read, and of the largest gradients."""
    largest = max(right.abs().max().item() for right in expected)
    for left, right in zip(actual, expected, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=2e-6 + 2e-4 * largest)
    assert largest > 1e-3  # something to compare


@pytest.mark.parametrize("kl_weight", [0.0, 0.03])
@pytest.mark.parametrize(("id_loss", "draws"), [("mean", 4), ("draws", 4), ("mean", 0)])
def test_id_step_follows_loss_plus_kl(batch: tuple[Tensor, Tensor], id_loss: str, draws: int, kl_weight: float) -> None:
    x, y = batch
    steps = make(Objective(id_loss=id_loss, kl_weight=kl_weight, together=False, draws=(draws,) * 3))  # type: ignore[arg-type]
    rows = torch.arange(len(y))

    def loss(probs: Tensor) -> Tensor:
        return -probs.mean(0)[rows, y].log().mean() if id_loss == "mean" else -probs[:, rows, y].log().mean()

    torch.manual_seed(11)
    expected = expected_gradient(steps.model, draws, loss, kl_weight, x)
    check(updates(steps, lambda: steps.id_step(x, y)), expected)


@pytest.mark.parametrize("maximise", [False, True])
@pytest.mark.parametrize("kl_weight", [0.0, 0.03])
def test_outlier_step_follows_its_sign_alpha_and_kl(
    batch: tuple[Tensor, Tensor], maximise: bool, kl_weight: float
) -> None:
    x, y = batch
    options: dict[str, Any] = {"outlier_kl": True, "together": False, "draws": (4, 4, 4)}
    goal = Objective(maximise=maximise, alpha=0.7, kl_weight=kl_weight, **options)
    steps = make(goal)
    made = far_away(x, y, generator())
    t = made.severity[:, None]
    target = (1 - t) * F.one_hot(y, CLASSES) + t / CLASSES
    sign = -0.7 if maximise else 0.7

    def loss(probs: Tensor) -> Tensor:
        return sign * -(target * probs.mean(0).log()).sum(1).mean()

    torch.manual_seed(11)
    expected = expected_gradient(steps.model, 4, loss, sign * kl_weight, made.x)
    check(updates(steps, lambda: steps.outlier_step(x, y, generator())), expected)


def test_outlier_step_without_kl_of_its_own(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    with_term, without = (make(Objective(kl_weight=0.03, outlier_kl=own, together=False)) for own in (True, False))
    no_weight = make(Objective(kl_weight=0.0, outlier_kl=True, together=False))
    plain = updates(without, lambda: without.outlier_step(x, y, generator()))
    check(plain, updates(no_weight, lambda: no_weight.outlier_step(x, y, generator())))
    assert not torch.allclose(plain[0], updates(with_term, lambda: with_term.outlier_step(x, y, generator()))[0])


def test_together_is_the_sum_of_both_steps(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    separate = [make(Objective(kl_weight=0.01, together=False)) for _ in range(2)]
    torch.manual_seed(11)
    plain = separate[0].losses.plain(x)
    assert plain is not None
    first = updates(separate[0], lambda: separate[0].id_step(x, y, plain))
    state = torch.random.get_rng_state()

    def outlier() -> None:
        torch.random.set_rng_state(state)
        separate[1].outlier_step(x, y, generator(), plain)

    second = updates(separate[1], outlier)
    joint = make(Objective(kl_weight=0.01, together=True))
    check(updates(joint, lambda: joint.step(x, y, generator())), [a + b for a, b in zip(first, second)])


@pytest.mark.parametrize("folds_at_input", [False, True])
def test_the_plain_network_comes_along_and_teaches_the_same(batch: tuple[Tensor, Tensor], folds_at_input: bool) -> None:
    apart, along = (make(Objective(kl_weight=0.01)) for _ in range(2))
    assert not apart.plain_comes_along
    along.model.state.plain, along.losses.can_come_along, along.plain_comes_along = True, True, True
    if folds_at_input:
        for block in along.model.attached_blocks:
            block.unfolds = False
    assert along.model.folds_at_input is folds_at_input
    check(
        updates(along, lambda: along.step(*batch, generator())), updates(apart, lambda: apart.step(*batch, generator()))
    )
    assert along.model.state.plain


def test_outliers_made_beforehand_teach_the_same(batch: tuple[Tensor, Tensor]) -> None:
    apart, at_once = (make(Objective(kl_weight=0.01)) for _ in range(2))
    assert apart.prepare_step(*batch) == ()  # nothing is captured on a CPU
    apart.outliers_first = True
    made = apart.prepare_step(*batch)
    torch.manual_seed(3)
    expected = updates(at_once, lambda: at_once.step(*batch, generator()))
    torch.manual_seed(3)
    check(updates(apart, lambda: apart.step_with(*batch, *made)), expected)


def test_a_backbone_that_learns_together_follows_the_same_goal(batch: tuple[Tensor, Tensor]) -> None:
    """Its update is the gradient of the sum of both losses, of the same draws as the attachments' update."""
    x, y = batch
    goal = Objective(kl_weight=0.01, together=True)
    steps = make(goal, frozen=False)
    twin = copy.deepcopy(steps.model)
    before = [p.detach().clone() for p in steps.backbone]
    torch.manual_seed(11)
    losses = steps.step(x, y, generator())
    assert set(losses) == {"id", "weighted_kl", "accuracy", "outliers"}
    torch.manual_seed(11)
    plain = twin.eval().backbone(x).detach()  # what it said before the step
    twin.train().resample(goal.draws[1])
    total = twin.task.id_loss(goal, twin.draw_logits(x), y, plain)
    made = far_away(x, y, generator())
    twin.eval().resample(goal.draws[2])
    total = total + twin.task.outlier_loss(goal, twin.draw_logits(made.x), made.y, made.severity, None, plain)
    expected = torch.autograd.grad(total, [p for _, p in twin.backbone_parameters()])
    check([old - new.detach() for old, new in zip(before, steps.backbone)], list(expected))
    assert all(p.requires_grad and p.grad is None for p in steps._parameters)


def entropy_on_outliers(steps: Steps, x: Tensor, y: Tensor) -> float:
    p = steps.model.predict(far_away(x, y, generator()).x, draws=20).probs
    return -(p * p.log()).sum(1).mean().item()


@pytest.mark.parametrize("loss", ["mean", "draws", "bce"])
def test_direction_of_the_outlier_step(batch: tuple[Tensor, Tensor], loss: str) -> None:
    """Minimising the distance to the uniform target makes the mean prediction less certain, maximising more."""
    x, y = batch
    for maximise in (False, True):
        goal = Objective(outlier_loss=loss, target="uniform", maximise=maximise, together=False)
        steps = make(goal, lr=0.02)
        before = entropy_on_outliers(steps, x, y)
        torch.manual_seed(0)
        for _ in range(5):
            steps.outlier_step(x, y, generator())
        after = entropy_on_outliers(steps, x, y)
        assert (after < before) if maximise else (after > before)


# -- what each step touches --------------------------------------------------------------------------------------------


def buffers(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


def test_outliers_never_reach_normalisation_statistics(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    steps = make(Objective(together=False), frozen=False)
    network = steps.model.backbone
    steps.model.train()
    before = buffers(network)
    torch.manual_seed(3)
    loss = steps.outlier_step(x, y, generator())
    assert same_state(buffers(network), before)
    assert all(module.training for module in steps.model.net.modules())
    # And they are judged as in use: with running statistics and without dropout.
    twin = make(Objective(together=False), frozen=False)
    twin.model.eval()
    torch.manual_seed(3)
    torch.testing.assert_close(twin.outlier_step(x, y, generator()), loss)
    steps.step(x, y, generator())
    assert not same_state(buffers(network), before)  # ordinary data does reach them


@pytest.mark.parametrize("name", ["default", "paper", "authors"])
def test_a_frozen_backbone_stays_bit_for_bit(batch: tuple[Tensor, Tensor], name: str, snapshot: Any) -> None:
    x, y = batch
    steps = make(
        preset(name).objective, frozen=True, preset=name, lr=1e-3, **({"share": False} if name == "authors" else {})
    )
    network = steps.model.backbone
    before, output, old = snapshot(network), network(x), attachments(steps)
    for seed in range(3):
        losses = steps.step(x, y, generator(seed))
        assert "backbone" not in losses and {"id", "weighted_kl", "outliers"} <= set(losses)
    assert same_state(snapshot(network), before) and torch.equal(network(x), output)
    assert not all(torch.equal(a, b) for a, b in zip(old, attachments(steps)))


def test_backbone_step_moves_the_backbone_alone(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    steps = make(Objective(together=False), frozen=False, lr=0.1)
    old, before = attachments(steps), [p.detach().clone() for p in steps.backbone]
    steps.backbone_step(x, y)
    assert all(torch.equal(a, b) for a, b in zip(old, attachments(steps)))
    assert not any(torch.equal(a, b) for a, b in zip(before, steps.backbone))
    moved = [p.detach().clone() for p in steps.backbone]
    steps.id_step(x, y)
    steps.outlier_step(x, y, generator())
    assert all(torch.equal(a, b) for a, b in zip(moved, steps.backbone))
    assert all(p.requires_grad and p.grad is None for p in steps._parameters)


class Counting:
    """Counts the updates of a real optimiser."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.count = inner, 0

    def step(self) -> None:
        self.count += 1
        self.inner.step()


@pytest.mark.parametrize(
    ("options", "backbone", "updates_of_attachments"),
    [
        ({"together": True}, 1, 1),
        ({"together": False}, 1, 2),
        ({"together": False, "update_per_draw": True, "draws": (5, 5, 5)}, 5, 2),
        ({"together": False, "outliers_update": "all"}, 2, 2),
    ],
)
def test_number_of_updates(
    batch: tuple[Tensor, Tensor], options: dict[str, Any], backbone: int, updates_of_attachments: int
) -> None:
    steps = make(Objective(**options), frozen=False, lr=1e-3)
    counts = {name: Counting(optimizer) for name, optimizer in steps.optimizers.items()}
    steps.attachment_optimizer, steps.backbone_optimizer = counts["attachments"], counts["backbone"]  # type: ignore[assignment]
    steps.step(*batch, generator())
    assert (counts["backbone"].count, counts["attachments"].count) == (backbone, updates_of_attachments)


@pytest.mark.parametrize("together", [True, False])
def test_without_outliers_only_id_data_teaches(batch: tuple[Tensor, Tensor], together: bool) -> None:
    x, y = batch
    steps = make(Objective(together=together, kl_weight=0.01), outliers=None)
    reference = make(Objective(together=False, kl_weight=0.01))
    expected = updates(reference, lambda: reference.id_step(x, y, reference.losses.plain(x)))
    check(updates(steps, lambda: steps.step(x, y, generator())), expected)
    assert set(steps.step(x, y, generator())) == {"id", "weighted_kl", "accuracy"}


def test_kept_gradient_of_step_1_joins_step_2(batch: tuple[Tensor, Tensor]) -> None:
    """As in the authors' code: the attachments' update is the gradient of both losses."""
    x, y = batch
    options: dict[str, Any] = {"together": False, "draws": (1, 3, 3), "kl_weight": 0.0, "id_loss": "draws"}
    kept = make(Objective(keep_gradient=True, **options), frozen=False, outliers=None)
    clean = make(Objective(**options), frozen=False, outliers=None)
    for steps in (kept, clean):
        steps.optimizers["backbone"].param_groups[0]["lr"] = 0.0
    twin = copy.deepcopy(clean.model)
    with_it = updates(kept, lambda: kept.step(x, y, generator()))
    without = updates(clean, lambda: clean.step(x, y, generator()))
    rows = torch.arange(len(y))
    torch.manual_seed(11)
    twin.train().resample(1)
    loss = -twin.draw_logits(x).log_softmax(2)[:, rows, y].mean()
    leak = torch.autograd.grad(loss, [p for _, p in twin.attachment_parameters()])
    for a, b, c in zip(with_it, without, leak):
        torch.testing.assert_close(a - b, c, rtol=1e-3, atol=1e-5 + 1e-3 * c.abs().max().item())


def test_outliers_may_update_everything(batch: tuple[Tensor, Tensor]) -> None:
    steps = make(Objective(outliers_update="all", together=False), frozen=False, lr=0.01, kind="replace")
    before = [p.detach().clone() for p in steps.backbone]
    steps.model.eval()
    steps.outlier_step(*batch, generator())
    assert not any(torch.equal(a, b) for a, b in zip(before, steps.backbone))


# -- compiled ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "authors"])
@pytest.mark.no_cover
def test_compiled_losses_teach_the_same(
    batch: tuple[Tensor, Tensor], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced as a whole, losses and KL with the network, but run without generated code."""
    options: dict[str, Any] = {"frozen": name == "default", "preset": name, "lr": 1.0 if name == "default" else 0.1}
    if name == "authors":
        options["share"] = False
    plain = make(preset(name).objective, **options)
    expected = updates(plain, lambda: plain.step(*batch, generator()))
    torch._dynamo.reset()
    original, graphs = torch.compile, []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda function, **_: original(function, backend=count, fullgraph=True))
    monkeypatch.setattr("abnn.train.loss.is_compiled", lambda network: True)
    monkeypatch.setattr("abnn.predict.compiling.is_compiled", lambda network: True)
    steps = make(preset(name).objective, **options)
    check(updates(steps, lambda: steps.step(*batch, None)), expected)
    assert len(graphs) == (2 if name == "default" else 3)  # one for each step


# -- small parts -------------------------------------------------------------------------------------------------------


def test_touching_puts_flags_back_after_an_error() -> None:
    a, b = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1), requires_grad=False)
    with pytest.raises(ZeroDivisionError), touching([b], [a, b]):
        assert not a.requires_grad and b.requires_grad
        raise ZeroDivisionError
    assert a.requires_grad and not b.requires_grad


def test_gradients_are_averaged_in_one_message() -> None:
    class Two:
        world_size = 2
        messages = 0

        def all_reduce(self, flat: Tensor, reduce_op: str) -> Tensor:
            assert reduce_op == "mean"
            self.messages += 1
            return (flat + 10) / 2  # the other device has 10 everywhere

    parameters = [nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(1))]
    parameters[0].grad, parameters[1].grad = torch.full((2, 3), 2.0), torch.full((4,), 4.0)
    fabric = Two()
    average_gradients(parameters, fabric)
    assert fabric.messages == 1 and parameters[2].grad is None
    assert torch.equal(parameters[0].grad, torch.full((2, 3), 6.0)) and torch.equal(
        parameters[1].grad, torch.full((4,), 7.0)
    )
    average_gradients(parameters[2:], fabric)
    assert fabric.messages == 1


def test_diagnostics() -> None:
    steps = make(Objective())
    first = steps.end_epoch(0, {"id": 1.0, "weighted_kl": 0.5})
    second = steps.end_epoch(1, {"id": 1.25, "weighted_kl": 0.5})
    assert first["id_divergence_growth"] == 0 and second["id_divergence_growth"] == pytest.approx(0.25)
    assert 0 < first["sigma_mean"] <= first["sigma_max"]
    assert steps.trouble() is None
    with torch.no_grad():
        steps.model.layers[0].weight_rho.fill_(2 * EXPLODED)
    assert "sigma" in str(steps.trouble())
