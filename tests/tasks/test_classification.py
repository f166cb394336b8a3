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
from abnn.networks.by_name import PaperResNet
from abnn.tasks.classification import (
    Classification,
    draw_bce,
    draw_cross_entropy,
    graded_target,
    log_mean_prediction,
    mean_cross_entropy,
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
    torch.testing.assert_close(TASK.id_loss(Objective(), z, y), F.cross_entropy(z[0], y))
    torch.testing.assert_close(TASK.id_loss(Objective(id_loss="draws"), z, y), F.cross_entropy(z[0], y))
    many = logits(draws=4)
    separate = torch.stack([F.cross_entropy(draw, y) for draw in many]).mean()
    torch.testing.assert_close(TASK.id_loss(Objective(id_loss="draws"), many, y), separate)
    assert TASK.id_loss(Objective(), many, y) < separate  # Jensen: the mean prediction is never worse


def test_losses_stay_finite_for_extreme_logits() -> None:
    z = 1e4 * logits().float()
    for loss in (mean_cross_entropy, draw_cross_entropy, draw_bce):
        assert torch.isfinite(loss(z, targets().float()))


@given(st.floats(0, 1), st.integers(0, CLASSES - 1))
def test_graded_target(severity: float, label: int) -> None:
    target = graded_target(torch.tensor([label]), torch.tensor([severity], dtype=torch.float32), CLASSES)[0]
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
    t = graded_target(y, severity, CLASSES).double()
    torch.testing.assert_close(TASK.outlier_loss(Objective(), z, y, severity, None), mean_cross_entropy(z, t))
    uniform = torch.full((5, CLASSES), 1 / CLASSES, dtype=torch.float64)
    goal = Objective(target="uniform", outlier_loss="draws")
    torch.testing.assert_close(TASK.outlier_loss(goal, z, y, severity, None), draw_cross_entropy(z, uniform))
    full = TASK.outlier_loss(Objective(target="graded"), z, y, torch.ones(5), None)
    torch.testing.assert_close(full, TASK.outlier_loss(Objective(target="uniform"), z, y, severity, None))


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
    assert chosen.objective.outlier_loss == "mean"


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
        ({"draws": (1, 0, 1)}, r"draws: got \(1, 0, 1\)"),
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
