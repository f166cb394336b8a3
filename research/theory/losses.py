"""What the outlier losses do to a prediction: the paper's and the authors' when maximised, and the default's when minimised."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.scores import entropy, mutual_information
from abnn.tasks.classification import (
    draw_bce,
    draw_cross_entropy,
    graded_target,
    log_mean_prediction,
    mean_cross_entropy,
)
from research.theory.check import Check

Loss = Callable[[Tensor, Tensor], Tensor]


def uniform_cross_entropy(seed: int = 0, classes: int = 10, inputs: int = 256, steps: int = 200) -> Check:
    """L(z) = ln sum_k e^{z_k} - mean_k z_k: convex, lowest (ln K) at equal logits, unbounded above; dL/dz = p - 1/K.

    Upwards, every class that is more probable than 1/K gains and every other loses: the loss pays for confidence in
    whatever is predicted. In a gradient flow the gap between two logits changes by p_i - p_j, so the largest probability grows
    up the loss and falls down it.
    """
    before, up, down = _walks(draw_cross_entropy, seed, classes, inputs, steps, inputs)
    slope = (_loss_of_one(draw_cross_entropy, classes, 200.0) - _loss_of_one(draw_cross_entropy, classes, 100.0)) / 100
    return Check(
        "The step on the cross-entropy to 1/K makes predictions on outliers less certain",
        {
            "minimised": down["entropy"] > before["entropy"],
            "maximised, as in the paper": up["entropy"] > before["entropy"],
        },
        f"free logits: confidence {before['confidence']:.2f}, minimised {down['confidence']:.2f}, maximised "
        f"{up['confidence']:.2f}; the loss grows by {slope:.2f} for each unit of the largest logit, without end",
        {"slope": slope, **_named(before=before, maximised=up, minimised=down)},
    )


def uniform_bce(seed: int = 0, classes: int = 10, inputs: int = 256, steps: int = 200) -> Check:
    """The authors' form, 1/K sum_k [softplus(z_k) - z_k / K]: lowest at z_k = -ln(K - 1), unbounded above on both sides.

    dL/dz_k = (sigmoid(z_k) - 1/K) / K: upwards, every logit above -ln(K - 1) grows without end, and those below it fall. The
    gap between two logits changes by sigmoid(z_i) - sigmoid(z_j), so the largest probability grows up the loss as well, but
    ever more slowly: most of the reward is for a shift of all logits, which leaves the prediction as it is.
    """
    before, up, down = _walks(draw_bce, seed, classes, inputs, steps, inputs * classes)
    lowest = draw_bce(torch.full((1, 1, classes), -math.log(classes - 1)).double(), _uniform(1, classes)).item()
    return Check(
        "The step on the BCE to 1/K makes predictions on outliers less certain",
        {
            "minimised": down["entropy"] > before["entropy"],
            "maximised, as in the authors' code": up["entropy"] > before["entropy"],
        },
        f"free logits: confidence {before['confidence']:.2f}, minimised {down['confidence']:.2f}, maximised "
        f"{up['confidence']:.2f}; mean logit when maximised {up['logit']:.0f}",
        {"lowest": lowest, **_named(before=before, maximised=up, minimised=down)},
    )


def same_reward(classes: int = 10, logit: float = 30.0) -> Check:
    """K draws that are sure of K different classes, against K draws that are all sure of the same: who is paid more?

    A loss that is averaged over draws sees each of them alone, and pays both the same. The loss of the mean prediction is
    lowest where the draws disagree.
    """
    apart = logit * torch.eye(classes, dtype=torch.float64)[:, None]
    alike = apart[:1].expand(classes, 1, classes)
    target = _uniform(1, classes)
    paid = {name: draw_cross_entropy(z, target).item() for name, z in (("apart", apart), ("alike", alike))}
    mean = {name: mean_cross_entropy(z, target).item() for name, z in (("apart", apart), ("alike", alike))}
    return Check(
        "Maximising the cross-entropy to 1/K rewards draws that disagree more than confident ones that agree",
        {
            "loss averaged over draws": paid["apart"] > paid["alike"] + 1e-9,
            "loss of the mean prediction": mean["apart"] > mean["alike"] + 1e-9,
        },
        f"over draws {paid['apart']:.1f} for disagreement and {paid['alike']:.1f} for agreement; of the mean "
        f"{mean['apart']:.1f} and {mean['alike']:.1f}",
        {
            "draws_apart": paid["apart"],
            "draws_alike": paid["alike"],
            "mean_apart": mean["apart"],
            "mean_alike": mean["alike"],
        },
    )


def graded(seed: int = 0, classes: int = 10, draws: int = 4, levels: int = 20, steps: int = 2000) -> Check:
    """The default: - sum_k q_k ln p_k of the mean prediction p is lowest at p = q = (1 - t) one-hot + t/K.

    The entropy of q grows with t: dH/dt = (1 - 1/K) ln(a / b) > 0 for t < 1, a = 1 - t + t/K of the label, b = t/K of others.
    """
    t = torch.linspace(0, 1, levels + 1, dtype=torch.float64)[1:]
    target = graded_target(F.one_hot(torch.zeros(levels, dtype=torch.long), classes), t).double()
    start = torch.randn(draws, levels, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    prediction = log_mean_prediction(_walk(mean_cross_entropy, start, target, steps, torch.optim.Adam, -0.05)).exp()
    error = (prediction - target).abs().amax().item()
    entropies = [target_entropy(each, classes) for each in t.tolist()]
    rising = all(low < high for low, high in itertools.pairwise(entropies))
    return Check(
        "The default: where its outlier loss is lowest, uncertainty on outliers follows their severity",
        {
            f"{classes} classes, severity {t[0]:g} to 1": error < 1e-3
            and rising
            and bool((entropy(prediction[None]).diff() > 0).all())
        },
        f"free logits of {draws} draws: mean prediction within {error:.0e} of its target; entropy {entropies[0]:.2f} at "
        f"severity {t[0]:g}, {target_entropy(0.5, classes):.2f} at 0.5, {entropies[-1]:.2f} at 1",
        {"error": error, **{f"entropy_t{each:.2f}": value for each, value in zip(t.tolist(), entropies)}},
    )


def target_entropy(t: float, classes: int) -> float:
    """Entropy of (1 - t) one-hot + t/K, in nats."""
    others = t / classes
    label = 1 - t + others
    return -label * math.log(label) - ((classes - 1) * others * math.log(others) if t > 0 else 0.0)


def two_ways(classes: int = 10, logit: float = 30.0) -> Check:
    """H(p) = mean_s H(p_s) + mutual information: the same mean prediction, from undecided draws or from draws that disagree.

    So the default's loss is the same for both, and its minimum says nothing about the disagreement of draws.
    """
    undecided = torch.zeros(classes, 1, classes, dtype=torch.float64)
    apart = logit * torch.eye(classes, dtype=torch.float64)[:, None]
    target = _uniform(1, classes)
    losses = [mean_cross_entropy(z, target).item() for z in (undecided, apart)]
    shares = [mutual_information(z.softmax(2)).item() for z in (undecided, apart)]
    return Check(
        "The default: high entropy of the mean prediction means that the draws disagree",
        {"in general": shares[0] > 0.5},
        f"loss {losses[0]:.3f} for undecided draws and {losses[1]:.3f} for draws that disagree; share of the entropy that is "
        f"disagreement: {shares[0]:.0%} and {shares[1]:.0%}",
        {"loss_undecided": losses[0], "loss_apart": losses[1], "share_undecided": shares[0], "share_apart": shares[1]},
    )


def _walks(
    loss: Loss, seed: int, classes: int, inputs: int, steps: int, averaged: int
) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Predictions from logits N(0, 1), and after steps up and down the loss to 1/K, which is an average of so many terms."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(1, inputs, classes, generator=generator, dtype=torch.float64)
    target = _uniform(inputs, classes)
    up, down = (_walk(loss, start, target, steps, torch.optim.SGD, sign * averaged / 2) for sign in (1, -1))
    return _describe(start), _describe(up), _describe(down)


def _walk(loss: Loss, start: Tensor, target: Tensor, steps: int, optimizer: Any, lr: float) -> Tensor:
    """Logits after steps up the loss, down it for a negative ``lr``."""
    logits = start.clone().requires_grad_()
    walker = optimizer([logits], abs(lr), maximize=lr > 0)
    for _ in range(steps):
        walker.zero_grad()
        loss(logits, target).backward()
        walker.step()
    return logits.detach()


def _describe(logits: Tensor) -> dict[str, float]:
    samples = logits.softmax(2)
    nats = entropy(samples).mean().item() * math.log(logits.shape[2])
    return {"confidence": samples.mean(0).amax(1).mean().item(), "entropy": nats, "logit": logits.mean().item()}


def _loss_of_one(loss: Loss, classes: int, logit: float) -> float:
    logits = logit * F.one_hot(torch.tensor([[0]]), classes).double()
    return loss(logits, _uniform(1, classes)).item()


def _uniform(inputs: int, classes: int) -> Tensor:
    return torch.full((inputs, classes), 1 / classes, dtype=torch.float64)


def _named(**groups: dict[str, float]) -> dict[str, float]:
    return {f"{group}_{name}": value for group, values in groups.items() for name, value in values.items()}


LOSS_CHECKS: dict[str, Callable[[int], Check]] = {
    "uniform_cross_entropy": uniform_cross_entropy,
    "uniform_bce": uniform_bce,
    "same_reward": lambda seed: same_reward(),
    "graded": graded,
    "two_ways": lambda seed: two_ways(),
}
