"""Losses against their formulas, and presets against the paper and the authors' settings."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import abnn
from abnn.bayes.layers import Init
from abnn.bayes.priors import Gaussian
from abnn.config import PRESETS, Objective, preset
from abnn.errors import InputError
from abnn.model.evidence import Evidence
from abnn.networks.by_name import PaperResNet
from abnn.tasks.base import Usual
from abnn.tasks.classification import (
    PARTS,
    Classification,
    draw_bce,
    draw_cross_entropy,
    graded_target,
    hidden_loss,
    log_mean_prediction,
    mean_cross_entropy,
    mean_logits,
    mean_logs,
    of_loss,
    ordinary_target,
)
from tests.conftest import generator

TASK = Classification()

CLASSES = 4


def logits(draws: int = 3, batch: int = 5, seed: int = 0, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(draws, batch, CLASSES, dtype=torch.float64, generator=generator(seed))


def targets(batch: int = 5) -> Tensor:
    return torch.rand(batch, CLASSES, dtype=torch.float64, generator=generator(9))


def test_mean_cross_entropy() -> None:
    z, t = logits(), targets()
    p = z.softmax(2).mean(0)
    expected = sum(-sum(t[b, k] * math.log(p[b, k]) for k in range(CLASSES)) for b in range(5)) / 5
    assert mean_cross_entropy(z, t).item() == pytest.approx(float(expected), rel=1e-12)
    torch.testing.assert_close(log_mean_prediction(z), p.log())


@given(st.integers(1, 5), st.integers(1, 4), st.integers(2, 6), st.floats(0.01, 50))
def test_mean_logits_are_those_of_the_mean_prediction(draws: int, batch: int, classes: int, scale: float) -> None:
    z = scale * torch.randn(draws, batch, classes, dtype=torch.float64, generator=generator(draws))
    torch.testing.assert_close(mean_logits(z).softmax(1), z.softmax(2).mean(0))
    same = z[:1].expand(draws, -1, -1)
    torch.testing.assert_close(mean_logits(same), z[0])


def test_draw_cross_entropy() -> None:
    z, t = logits(), targets()
    p = z.softmax(2)
    expected = sum(-t[b, k] * p[s, b, k].log() for s in range(3) for b in range(5) for k in range(CLASSES)) / 15
    torch.testing.assert_close(draw_cross_entropy(z, t), torch.as_tensor(expected))


def test_draw_bce() -> None:
    z, t = logits(), targets()
    q = z.sigmoid()
    expected = -(t * q.log() + (1 - t) * (1 - q).log()).mean()
    torch.testing.assert_close(draw_bce(z, t), expected)


def test_losses_agree_for_one_draw_and_with_torch() -> None:
    z, y = logits(draws=1), torch.tensor([0, 1, 2, 3, 0])
    mean, draws = Objective(hide=0.0), Objective(id_loss="draws", hide=0.0)
    torch.testing.assert_close(TASK.id_loss(mean, z, y), F.cross_entropy(z[0], y))
    torch.testing.assert_close(TASK.id_loss(draws, z, y), F.cross_entropy(z[0], y))
    many = logits(draws=4)
    separate = torch.stack([F.cross_entropy(draw, y) for draw in many]).mean()
    torch.testing.assert_close(TASK.id_loss(draws, many, y), separate)
    assert TASK.id_loss(mean, many, y) < separate  # Jensen: the mean prediction is never worse


def test_losses_stay_finite_for_extreme_logits() -> None:
    z = 1e4 * logits().float()
    for loss in (mean_cross_entropy, draw_cross_entropy, draw_bce):
        assert torch.isfinite(loss(z, targets().float()))


@given(st.floats(0, 1), st.integers(0, CLASSES - 1))
def test_graded_target(severity: float, label: int) -> None:
    known = F.one_hot(torch.tensor([label]), CLASSES).float()
    target = graded_target(known, torch.tensor([severity], dtype=torch.float32))[0]
    assert target.sum().item() == pytest.approx(1, abs=1e-6)
    for k in range(CLASSES):
        assert target[k].item() == pytest.approx((1 - severity) * (k == label) + severity / CLASSES, abs=1e-6)


def entropy_of_mean(z: Tensor) -> float:
    p = z.softmax(2).mean(0)
    return -(p * p.log()).sum(1).mean().item()


@pytest.mark.parametrize("loss", ["mean", "draws", "bce"])
def test_minimising_the_outlier_term_raises_the_entropy_of_the_mean(loss: str) -> None:
    goal = Objective(outlier_loss=loss, target="uniform")
    z = logits().requires_grad_()
    y, severity = torch.zeros(5, dtype=torch.long), torch.ones(5)
    TASK.outlier_loss(goal, z, y, severity, None).backward()
    assert z.grad is not None
    step = 0.1 * z.grad
    assert entropy_of_mean(z.detach() - step) > entropy_of_mean(z.detach()) > entropy_of_mean(z.detach() + step)


def test_outlier_targets() -> None:
    z, y, severity = logits(), torch.tensor([0, 1, 2, 3, 0]), torch.linspace(0, 1, 5)
    t = graded_target(F.one_hot(y, CLASSES).float(), severity).double()
    torch.testing.assert_close(TASK.outlier_loss(Objective(), z, y, severity, None), mean_cross_entropy(z, t))
    uniform = torch.full((5, CLASSES), 1 / CLASSES, dtype=torch.float64)
    goal = Objective(target="uniform", outlier_loss="draws")
    torch.testing.assert_close(TASK.outlier_loss(goal, z, y, severity, None), draw_cross_entropy(z, uniform))
    full = TASK.outlier_loss(Objective(target="graded"), z, y, torch.ones(5), None)
    torch.testing.assert_close(full, TASK.outlier_loss(Objective(target="uniform"), z, y, severity, None))


# -- what the backbone says ---------------------------------------------------------------------------------------------


@given(st.floats(0, 1), st.integers(0, 50))
def test_targets_are_distilled(distil: float, seed: int) -> None:
    """q = distil softmax(backbone) + (1 - distil) one-hot, a distribution."""
    plain, y = logits(1, seed=seed)[0].float(), torch.tensor([0, 1, 2, 3, 0])
    found = ordinary_target(Objective(distil=distil), y, CLASSES, plain)
    expected = distil * plain.softmax(1) + (1 - distil) * F.one_hot(y, CLASSES)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(found.sum(1), torch.ones(5))
    assert torch.equal(ordinary_target(Objective(distil=distil), y, CLASSES, None), F.one_hot(y, CLASSES).float())


def test_losses_with_what_the_backbone_says() -> None:
    z, plain, y, severity = logits(), logits(1, seed=4)[0], torch.tensor([0, 1, 2, 3, 0]), torch.linspace(0, 1, 5)
    goal = Objective(hide=0.0)
    known = 0.5 * plain.float().softmax(1) + 0.5 * F.one_hot(y, CLASSES)
    torch.testing.assert_close(TASK.id_loss(goal, z, y, plain), mean_cross_entropy(z, known.double()))
    graded = (1 - severity[:, None]) * known + severity[:, None] / CLASSES
    torch.testing.assert_close(
        TASK.outlier_loss(goal, z, y, severity, None, plain), mean_cross_entropy(z, graded.double())
    )
    own = plain[None].expand(3, -1, -1).clone().requires_grad_()  # one who distils all says what the backbone says
    TASK.id_loss(Objective(distil=1.0, hide=0.0), own, y, plain).backward()
    assert own.grad is not None and own.grad.abs().max() < 1e-7


# -- hidden classes ----------------------------------------------------------------------------------------------------


def hidden_by_hand(z: Tensor, target: Tensor, y: Tensor, hidden: Tensor) -> Tensor:
    """Loops over inputs; softmax over the classes that are left."""
    left, total = [k for k in range(z.shape[2]) if not hidden[k]], torch.zeros((), dtype=z.dtype)
    for b in range(z.shape[1]):
        log_p = z[:, b, left].softmax(1).mean(0).log()
        share = target[b, left] / target[b, left].sum()
        own = torch.full_like(share, 1 / len(left)) if hidden[y[b]] else share
        total -= (own * log_p).sum()
    return total / z.shape[1]


@pytest.mark.parametrize("seed", range(12))
def test_hidden_loss_is_that_over_the_classes_that_are_left(seed: int) -> None:
    z, y = logits(), torch.tensor([0, 1, 2, 3, 0])
    target = ordinary_target(Objective(), y, CLASSES, logits(1, seed=7)[0]).double()
    torch.manual_seed(seed)
    hidden = torch.rand(CLASSES) < 0.5
    if hidden.all() or not hidden.any():
        hidden = torch.arange(CLASSES) == 0
    torch.manual_seed(seed)
    found = hidden_loss(z, target, y)
    torch.testing.assert_close(found, hidden_by_hand(z, target, y, hidden), rtol=1e-5, atol=1e-5)


def test_hiding_is_part_of_the_loss() -> None:
    z, y = logits(), torch.tensor([0, 1, 2, 3, 0])
    plain = TASK.id_loss(Objective(hide=0.0), z, y)
    torch.manual_seed(3)
    both = TASK.id_loss(Objective(hide=0.25), z, y)
    torch.manual_seed(3)
    torch.testing.assert_close(both, plain + 0.25 * hidden_loss(z, F.one_hot(y, CLASSES).float(), y))
    few, labels = z[:, :, :3], y.clamp(max=2)  # too few classes to hide some
    torch.testing.assert_close(TASK.id_loss(Objective(), few, labels), TASK.id_loss(Objective(hide=0.0), few, labels))


def test_hidden_loss_is_finite_with_finite_gradients() -> None:
    for scale in (0.0, 1e3):
        z, y = (scale * logits().float()).requires_grad_(), torch.tensor([0, 1, 2, 3, 0])
        for _ in range(10):
            loss = hidden_loss(z, F.one_hot(y, CLASSES).float(), y)
            loss.backward()
            assert loss.isfinite() and z.grad is not None and z.grad.isfinite().all()


@pytest.mark.parametrize("name", ["default", "paper", "authors"])
@pytest.mark.parametrize("offset", [0.0, -500.0])
def test_losses_are_finite_where_probabilities_were_rounded_to_zero(name: str, offset: float) -> None:
    """Or where a network rules classes out. What they are worth else, and what inputs without them say, stays."""
    goal, y = preset(name).objective, torch.tensor([0, 1, 2, 3, 0])
    z = (logits().float() + offset).requires_grad_()
    low = torch.zeros(z.shape, dtype=torch.bool)
    low[:, 0, 1] = low[0, 1, :2] = low[:, 2, 1:] = True
    ruled_out = z.masked_fill(low, -torch.inf)
    for _ in range(10):
        torch.manual_seed(0)
        loss = TASK.id_loss(goal, ruled_out, y, ruled_out[0].detach())
        loss = loss + TASK.outlier_loss(goal, ruled_out, y, torch.linspace(0, 1, 5), None, ruled_out[0].detach())
        (gradient,) = torch.autograd.grad(loss, z, retain_graph=True)
        assert loss.isfinite() and gradient.isfinite().all() and not gradient[low].any()
    target, possible = F.one_hot(y, CLASSES).float(), ruled_out.softmax(2).mean(0).log()
    torch.testing.assert_close(mean_cross_entropy(of_loss(ruled_out[:, [0]]), target[:1]), -possible[0, 0])
    assert torch.equal(of_loss(z), z)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 99))
def test_hidden_classes_are_a_fifth(classes: int, rounds: int, seed: int) -> None:
    found = TASK.hidden_classes(classes, rounds, generator(seed))
    if classes < 4:
        assert found == []
        return
    assert len(found) == rounds and all(each.dtype == torch.bool and each.shape == (classes,) for each in found)
    assert {int(each.sum()) for each in found} == {max(1, round(0.2 * classes))}
    again = TASK.hidden_classes(classes, rounds, generator(seed))
    assert all(torch.equal(left, right) for left, right in zip(found, again))


def test_every_class_is_hidden_at_times() -> None:
    counts = torch.stack(TASK.hidden_classes(10, 500, generator(1))).float().mean(0)
    assert (counts - 0.2).abs().max() < 5 * math.sqrt(0.2 * 0.8 / 500)


# -- parts of the score ------------------------------------------------------------------------------------------------


FEATURES, PLACES = 6, 3


def evidence(rows: int = 7, seed: int = 0) -> tuple[Evidence, Usual]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    made = generator(seed)
    weight, bias = normal(CLASSES, FEATURES), normal(CLASSES)
    last = normal(rows, FEATURES)
    plain = last @ weight.T + bias
    found = Evidence(plain, plain + normal(rows, CLASSES), last, weight, bias, normal(rows, PLACES), normal(rows, 2))
    return found, Usual(normal(PLACES), normal(FEATURES), torch.tensor(0.4))


def parts_by_hand(given: Evidence, usual: Usual, visible: list[int]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in TASK.part_names(True)}
    for b in range(len(given.plain)):
        plain, attached = given.plain[b, visible].double().tolist(), given.attached[b, visible].double().tolist()

        def log_sum(z: list[float]) -> float:
            return math.log(sum(math.exp(value) for value in z))

        def probs(z: list[float]) -> list[float]:
            return [math.exp(value - log_sum(z)) for value in z]

        p, q = probs(plain), probs(attached)
        wide = math.sqrt(
            1 + sum(math.exp(v - u) for v, u in zip(given.variances[b].tolist(), usual.variances.tolist())) / PLACES
        )
        for prefix, z, share in (("", plain, p), ("attached ", attached, q)):
            found[f"{prefix}energy"].append(-log_sum(z))
            found[f"{prefix}odds"].append(math.log((1 - max(share)) / max(share)))
            found[f"{prefix}entropy"].append(math.log(1e-3 - sum(each * math.log(each) for each in share)))
            mean = sum(z) / len(z)
            found[f"widened {prefix}energy"].append(-mean - log_sum([(value - mean) / wide for value in z]))
        found["change of mind"].append(math.log(1e-3 + sum(a * math.log(a / c) for a, c in zip(p, q))))
        assert given.last is not None and given.weight is not None and given.bias is not None
        centred = (given.last[b] - usual.last).double()
        best = given.weight[visible][p.index(max(p))].double()
        found["misfit"].append(-float(best @ centred / centred.norm()))
        found["smallness"].append(-math.log(1e-6 + float(given.last[b].double().abs().sum())))
        clipped = given.last[b].clamp(max=0.4).double() @ given.weight[visible].double().T + given.bias[visible]
        found["clipped energy"].append(-log_sum(clipped.tolist()))
        rows = given.weight[visible].double()
        ridge = rows.square().sum() / FEATURES * torch.eye(FEATURES)
        unclaimed = (
            1 - centred @ torch.linalg.solve(rows.T @ rows + ridge, rows.T @ rows @ centred) / centred.square().sum()
        )
        found["unclaimed"].append(math.log(unclaimed / (1 - unclaimed)))
    return found


@pytest.mark.parametrize("visible", [None, [0, 2, 3], [1, 3]])
def test_parts_equal_their_formulas(visible: list[int] | None) -> None:
    given, usual = evidence()
    found = TASK.parts(given, usual, None if visible is None else torch.tensor(visible))
    expected = parts_by_hand(given, usual, visible or [*range(CLASSES)])
    assert list(expected) == TASK.part_names(True) and found.shape == (7, len(expected))
    for name, column in zip(expected, found.T):
        assert column.tolist() == pytest.approx(expected[name], rel=1e-3, abs=1e-3), name


def test_parts_without_a_last_layer() -> None:
    given, usual = evidence()
    assert TASK.part_names(True)[:9] == TASK.part_names(False)
    without = given._replace(last=None, weight=None, bias=None)
    torch.testing.assert_close(TASK.parts(without, usual), TASK.parts(given, usual)[:, :9])
    torch.testing.assert_close(TASK.parts(given._replace(bias=None), usual)[:, :11], TASK.parts(given, usual)[:, :11])


def test_parts_are_larger_where_less_is_known() -> None:
    """Weaker logits, weaker features and larger variances."""
    given, usual = evidence()
    assert given.last is not None
    weaker = given._replace(plain=given.plain / 5, attached=given.attached / 5, last=given.last / 5)
    names = TASK.part_names(True)
    less, more = TASK.parts(given, usual), TASK.parts(weaker, usual)
    for name in ("odds", "entropy", "attached odds", "attached entropy", "smallness"):
        assert (more[:, names.index(name)] > less[:, names.index(name)]).all(), name
    sure = given._replace(plain=given.plain.abs() + 5, attached=given.attached.abs() + 5)
    wider = TASK.parts(sure._replace(variances=sure.variances + 3), usual)
    for name in ("widened energy", "widened attached energy"):
        assert (wider[:, names.index(name)] > TASK.parts(sure, usual)[:, names.index(name)]).all(), name
    same = TASK.parts(given._replace(attached=given.plain), usual)[:, names.index("change of mind")]
    torch.testing.assert_close(same, torch.full((7,), math.log(1e-3)))


@pytest.mark.parametrize("scale", [0.0, 1e4, 1e18, 1e30])
def test_parts_are_finite(scale: float) -> None:
    given, usual = evidence()
    assert given.last is not None
    far = given._replace(
        plain=scale * given.plain, attached=-scale * given.attached, last=scale * given.last,
        variances=torch.full((7, PLACES), 80.0 if scale else -80.0),
    )  # fmt: skip
    assert TASK.parts(far, usual).isfinite().all()
    assert TASK.parts(far, usual, torch.tensor([0, 3])).isfinite().all()


@pytest.mark.parametrize("visible", [None, [1, 3]])
def test_probabilities_that_were_rounded_to_zero_leave_parts_finite(visible: list[int] | None) -> None:
    """A network may return ln p, which is -inf there. Other rows, and other logits, stay what they are."""
    given, usual = evidence()
    rounded = given.plain.clone()
    rounded[0, [0, 1]] = rounded[1, [0, 1, 3]] = -torch.inf
    classes = None if visible is None else torch.tensor(visible)
    before, after = TASK.parts(given, usual, classes), TASK.parts(given._replace(plain=rounded), usual, classes)
    assert after.isfinite().all()
    assert torch.equal(after[2:], before[2:])


# -- other targets -----------------------------------------------------------------------------------------------------


def test_random_targets_come_from_the_generator() -> None:
    z, y = logits(), torch.zeros(5, dtype=torch.long)
    goal = Objective(target="random", outlier_loss="bce")
    drawn = torch.rand(5, CLASSES, generator=generator(3)).double()
    torch.testing.assert_close(TASK.outlier_loss(goal, z, y, torch.ones(5), generator(3)), draw_bce(z, drawn))
    first, second = (
        TASK.outlier_loss(goal, z, y, torch.ones(5), None),
        TASK.outlier_loss(goal, z, y, torch.ones(5), None),
    )
    assert first != second


# -- presets -----------------------------------------------------------------------------------------------------------


def test_paper_preset_is_algorithm_1() -> None:
    """Prior N(0, 1), posterior starts at N(0, 1), alpha 0.95, KL per batch, N = 5 draws, uniform labels maximised."""
    chosen = preset("paper")
    goal = chosen.objective
    assert chosen.attach["prior"] == Gaussian(1.0) and chosen.attach["init"] == Init(mean_std=0.0, sigma=1.0)
    assert chosen.attach["kind"] == "chain" and chosen.attach["share"] is False
    assert (goal.alpha, goal.maximise, goal.target, goal.outlier_loss) == (0.95, True, "uniform", "draws")
    assert goal.kl_factor(128) == 1 / 128 and goal.outlier_kl and goal.draws == (5, 5, 5)
    assert goal.update_per_draw and not goal.keep_gradient and not goal.together
    assert not chosen.freeze_backbone and chosen.score == "max-probability"


def test_authors_preset_is_their_code() -> None:
    chosen = preset("authors")
    goal = chosen.objective
    assert chosen.attach["prior"] == Gaussian(0.1) and chosen.attach["share"] is True
    init = chosen.attach["init"]
    assert init.mean_std == init.rho_std == 0.1 and init.sigma == pytest.approx(0.0024757, rel=1e-4)
    assert goal.kl_factor(128) == goal.kl_factor(7) == 1 / 50_000
    assert goal.draws == (1, 3, 3) and goal.outlier_loss == "bce" and goal.target == "uniform"
    assert goal.maximise and goal.alpha == 1.0 and goal.keep_gradient and goal.sampled_kl and goal.outlier_kl
    assert chosen.outlier_options["scale"] == 16.0 and not chosen.freeze_backbone


def test_authors_kl_at_the_start_is_as_logged() -> None:
    """147,712 scalars at about 3.699 nats: KL / 50,000 = 10.93."""
    model = abnn.attach(PaperResNet(), torch.rand(1, 1, 28, 28), preset="authors", draws=3)
    scalars = [p.numel() for layer in model.layers for name, p in layer.named_parameters() if name.endswith("mean")]
    assert sum(scalars) == 147_712
    assert model.kl().item() / 50_000 == pytest.approx(10.93, abs=0.05)
    assert model.kl(sampled=True).item() / 50_000 == pytest.approx(10.93, abs=0.05)


def test_default_preset_freezes_and_follows_severity() -> None:
    chosen = preset("default")
    assert chosen.freeze_backbone and chosen.objective.target == "graded" and not chosen.objective.maximise
    assert chosen.objective.outlier_loss == "mean" and chosen.score == "combined" and chosen.views == 1
    assert chosen.objective.draws == (0, 0, 0) and chosen.draws == 0  # mean weights
    assert (chosen.objective.distil, chosen.objective.hide) == (0.5, 0.3)


def test_the_papers_losses_know_nothing_of_the_backbones_prediction() -> None:
    for name in ("paper", "authors"):
        goal = preset(name).objective
        assert goal.distil == goal.hide == 0
        z, y, plain = logits(), torch.tensor([0, 1, 2, 3, 0]), logits(1, seed=5)[0]
        torch.testing.assert_close(TASK.id_loss(goal, z, y, plain), TASK.id_loss(goal, z, y))


def test_presets_can_be_changed() -> None:
    changed = preset("authors", maximise=False, alpha=0.5)
    assert not changed.objective.maximise and changed.objective.alpha == 0.5
    assert PRESETS["authors"].objective.maximise  # the preset itself stays
    assert changed.objective.to_dict()["alpha"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id_loss": "means"}, "id_loss: got 'means'.*Did you mean 'mean'"),
        ({"outlier_loss": "ce"}, "outlier_loss: got 'ce'"),
        ({"target": "grade"}, "target: got 'grade'.*Did you mean 'graded'"),
        ({"outliers_update": "some"}, "outliers_update: got 'some'"),
        ({"kl_weight": -1.0}, "kl_weight: got -1.0"),
        ({"kl_weight": "epoch"}, "kl_weight: got 'epoch'"),
        ({"alpha": -0.1}, "alpha: got -0.1.*maximise"),
        ({"alpha": math.nan}, "alpha: got nan"),
        ({"draws": (1, 2)}, r"draws: got \(1, 2\)"),
        ({"draws": (1, -1, 1)}, r"draws: got \(1, -1, 1\); accepted: three numbers of at least 0"),
        ({"distil": 1.5}, "distil: got 1.5; accepted: a number from 0 to 1"),
        ({"hide": -0.1}, "hide: got -0.1"),
        ({"maximise": True}, "together: got True"),
        ({"keep_gradient": True}, "together: got True"),
        ({"update_per_draw": True}, "together: got True"),
        ({"outliers_update": "all"}, "together: got True"),
    ],
)
def test_bad_settings_are_explained(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Objective(**options)


def test_unknown_preset() -> None:
    with pytest.raises(InputError, match="preset: got 'author'.*Did you mean 'authors'"):
        preset("author")


def test_divergence_keeps_its_digits_where_predictions_hardly_differ() -> None:
    """Rounded terms of KL that cancel would be off by 1e-7, here a thousand times what is true."""
    draw = generator(0)
    first = 3 * torch.randn(50, 10, generator=draw)
    for step in (1e-4, 1e-2, 1.0, 30.0):
        other = first + step * torch.randn(50, 10, generator=draw)
        log_p, log_q = first.double().log_softmax(1), other.double().log_softmax(1)
        exact = (log_p.exp() * (log_p - log_q)).sum(1).float()
        same, apart = mean_logs(torch.stack([first, other]).double().log_softmax(2))[0]
        torch.testing.assert_close((same - apart).float(), exact, rtol=1e-2, atol=1e-10)
    same, apart = mean_logs(log_p.expand(2, -1, -1))[0]
    assert torch.equal(same - apart, torch.zeros(50, dtype=torch.float64))
    evidence = Evidence(first, first, None, None, None, torch.zeros(50, 1), torch.zeros(50, 2))
    changed = TASK.parts(evidence, Usual(torch.zeros(1), torch.zeros(0), torch.zeros(())))[
        :, PARTS.index("change of mind")
    ]
    torch.testing.assert_close(changed, torch.full((50,), math.log(1e-3)))
