"""The paper's three theorems, in the settings that they assume and in those that are used."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from abnn.bayes.layers import inverse_softplus
from abnn.bayes.priors import gaussian_kl
from abnn.config import AUTHORS_INIT
from research.theory.check import Check

AUTHORS_PRIOR = 0.1


def label_variance(seed: int = 0, classes: int = 10, inputs: int = 20_000, margin: float = 0.1) -> Check:
    """Theorem 1: var(y_i) = p_i (1 - p_i) of every class i is smaller on ID data than 1/K (1 - 1/K) on full outliers.

    p (1 - p) < 1/K (1 - 1/K) exactly if p < 1/K or p > 1 - 1/K, and not all p_i can be below 1/K: so the statement is true
    exactly where the largest p_i exceeds 1 - 1/K. For two classes that is always; otherwise it asks for more than the
    definition of ID data (one density exceeds all others by a margin) gives. The sum, 1 - sum_i p_i^2, is largest at 1/K.
    """
    few, many = (_id_labels(seed, k, inputs, margin) for k in (2, classes))
    smaller, clear = smaller_variance(many), many.amax(1) > 1 - 1 / classes
    totals = all(bool((1 - p.square().sum(1) < 1 - 1 / p.shape[1]).all()) for p in (few, many))
    numbers = {
        "classes": classes,
        "inputs": inputs,
        "share_clear": clear.double().mean().item(),
        "share_violated_unless_clear": (~smaller[~clear]).double().mean().item(),
        "share_violated_two_classes": (~smaller_variance(few)).double().mean().item(),
        "variance_at_half": 0.25,
        "variance_on_outliers": (1 - 1 / classes) / classes,
    }
    return Check(
        "Theorem 1: the label of ID data has a smaller variance than that of outliers, in every class",
        {
            "2 classes": bool(smaller_variance(few).all()),
            f"{classes} classes, largest probability above {1 - 1 / classes:g}": bool(smaller[clear].all()),
            f"{classes} classes, largest probability below": bool(smaller[~clear].all()),
            "summed over the classes, always": totals,
        },
        f"violated by {numbers['share_violated_unless_clear']:.0%} of ID inputs below {1 - 1 / classes:g}; "
        f"at probability 0.5 the variance is 0.25, on outliers {numbers['variance_on_outliers']:g}",
        numbers,
    )


def smaller_variance(p: Tensor) -> Tensor:
    """Whether p_i (1 - p_i) < 1/K (1 - 1/K) for all classes, [B], from [B, K]."""
    k = p.shape[1]
    return (p * (1 - p) < (1 - 1 / k) / k).all(1)


def coin_toss(
    seed: int = 0, gap: float = 3.0, sigmas: tuple[float, ...] = (1, 10, 1000), classes: int = 10, draws: int = 20_000
) -> Check:
    """Theorem 2: P(z_1 + sigma e_1 > z_2 + sigma e_2) = Phi((z_1 - z_2) / (sigma sqrt 2)) -> 1/2."""
    noise = torch.randn(draws, classes, generator=_generator(seed), dtype=torch.float64)
    logits = F.one_hot(torch.tensor(0), classes).double() * gap
    plain = logits.softmax(0).amax().item()
    numbers: dict[str, float] = {"gap": gap, "classes": classes, "confidence_without_noise": plain}
    for sigma in sigmas:
        noisy = logits + sigma * noise
        samples = noisy.softmax(1)
        numbers |= {
            f"first_wins_sigma{sigma:g}": (noisy[:, 0] > noisy[:, 1]).double().mean().item(),
            f"first_wins_formula_sigma{sigma:g}": first_wins(gap, sigma),
            f"confidence_of_mean_sigma{sigma:g}": samples.mean(0).amax().item(),
            f"confidence_of_draw_sigma{sigma:g}": samples.amax(1).mean().item(),
        }
    last = f"sigma{sigmas[-1]:g}"
    error = 5 * math.sqrt((1 - 1 / classes) / classes / draws)
    mean, single = numbers[f"confidence_of_mean_{last}"], numbers[f"confidence_of_draw_{last}"]
    return Check(
        "Theorem 2: enough noise on the logits makes the prediction undecided",
        {"the mean over draws": abs(mean - 1 / classes) < error, "each draw by itself": single < plain},
        f"confidence without noise {plain:.2f}; sigma {sigmas[-1]:g}: of the mean {mean:.2f}, of a draw {single:.3f}",
        numbers,
    )


def first_wins(gap: float, sigma: float) -> float:
    return torch.special.ndtr(torch.tensor(gap / (sigma * math.sqrt(2)), dtype=torch.float64)).item()


def distance_and_noise(seed: int = 0, far: float = 1000.0, features: int = 16, draws: int = 20_000) -> Check:
    """Does weight noise alone make far inputs more uncertain? Not in a linear layer.

    With z_k = (m_k + sigma e_k) . h, mean gap and noise both scale with |h|:
    P(the classes change places) = Phi(-(m_1 - m_2) . h / (sigma sqrt 2 |h|)), the same for h and c h.
    """
    generator = _generator(seed)
    h, mean = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((features,), (2, features)))
    mean = mean * ((mean[0] - mean[1]) @ h).sign()
    weights = mean + torch.randn(draws, 2, features, generator=generator, dtype=torch.float64)
    near, away = (((weights @ (c * h)).diff(dim=1) > 0).double().mean().item() for c in (1.0, far))
    gap = ((mean[0] - mean[1]) @ h / h.norm()).item()
    return Check(
        "Uncertainty from weight noise alone grows with the distance of an input",
        {f"one linear layer, the input moved out {far:g} times": away > near},
        f"share of draws with another label: {near:.3f} near, {away:.3f} far",
        {"flipped_near": near, "flipped_far": away, "flipped_formula": 1 - first_wins(gap, 1.0)},
    )


def kl_width(steps: int = 1000, lr: float = 1e-3) -> Check:
    """Theorem 3, prior part: maximising KL[N(m, s^2) || N(0, p^2)] widens s if s > p, and only then.

    d KL / d s = s / p^2 - 1 / s and d KL / d m = m / p^2: s moves away from p, to either side, and m away from 0. At s = p,
    where the paper starts, the KL has its minimum over s and no direction; a mean other than 0 has one.
    """
    used = AUTHORS_INIT.sigma
    slopes = {
        "prior N(0, 1), sigma 1.5": kl_slopes(0.1, 1.5, 1.0),
        "prior N(0, 1), sigma 1: the paper's start": kl_slopes(0.1, 1.0, 1.0),
        "prior N(0, 0.1²), sigma 0.0025: the authors' code": kl_slopes(0.1, used, AUTHORS_PRIOR),
    }
    above, start, code = (by_sigma for _, by_sigma in slopes.values())
    wide, narrow = climb_kl(1.5, 1.0, steps, lr), climb_kl(used, AUTHORS_PRIOR, steps, lr)
    return Check(
        "Theorem 3: maximising the KL term widens the posterior",
        {name: by_sigma > 0 for name, (_, by_sigma) in slopes.items()},
        f"d KL / d sigma: {above:.2g}, {start:.2g}, {code:.0f}; {steps} steps up take sigma from 1.5 to {wide:.2g} and from "
        f"{used:.2g} to {narrow:.2g}",
        {
            "sigma_above": 1.5,
            "sigma_above_after": wide,
            "sigma_authors": used,
            "sigma_authors_after": narrow,
            "sigma_authors_after_minimising": climb_kl(used, AUTHORS_PRIOR, steps, -lr),
            "slope_above": above,
            "slope_start": start,
            "slope_authors": code,
            "slope_of_mean_start": kl_slopes(0.1, 1.0, 1.0)[0],
        },
    )


def kl_slopes(mean: float, sigma: float, prior: float) -> tuple[float, float]:
    """d KL / d mean and d KL / d sigma."""
    return mean / prior**2, sigma / prior**2 - 1 / sigma


def climb_kl(sigma: float, prior: float, steps: int, lr: float) -> float:
    """sigma = softplus(rho) after so many steps of Adam on rho, up the closed-form KL; down for a negative ``lr``."""
    rho = torch.tensor([inverse_softplus(sigma)], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([rho], abs(lr), maximize=lr > 0)
    for _ in range(steps):
        optimizer.zero_grad()
        gaussian_kl(torch.zeros_like(rho), F.softplus(rho), prior).backward()
        optimizer.step()
    return F.softplus(rho).item()


def noise_and_cross_entropy(
    seed: int = 0, gap: float = 2.0, small: float = 1e-3, large: float = 1e3, draws: int = 20_000
) -> Check:
    """Theorem 3, likelihood part: does noise of width sigma on two logits raise their cross-entropy to (1/2, 1/2)?

    That loss is a growing function of the distance |z_1 - z_2| alone, so it rises with probability
    1/2 + Phi(-sqrt 2 |gap| / sigma): 1 for large sigma, but 1/2, not 0, for small ones. What rises is each draw's confidence.
    """
    noise = torch.randn(draws, 2, generator=_generator(seed), dtype=torch.float64)
    rises = {
        s: (half_cross_entropy(gap + s * (noise[:, 0] - noise[:, 1])) > half_cross_entropy(gap)) for s in (small, large)
    }
    low, high = (rises[s].double().mean().item() for s in (small, large))
    return Check(
        "Theorem 3, its proof: noise raises the cross-entropy to the uniform label with a probability that tends to …",
        {"1 for large sigma": high > 0.99, "0 for small sigma": low < 0.01},
        f"sigma {large:g}: {high:.3f}; sigma {small:g}: {low:.3f}",
        {
            "small": low,
            "small_formula": rise_probability(gap, small),
            "large": high,
            "large_formula": rise_probability(gap, large),
        },
    )


def half_cross_entropy(gap: Tensor | float) -> Tensor:
    """-1/2 ln p_1 - 1/2 ln p_2 of two logits that lie ``gap`` apart."""
    gap = torch.as_tensor(gap, dtype=torch.float64)
    return (F.softplus(gap) + F.softplus(-gap)) / 2


def rise_probability(gap: float, sigma: float) -> float:
    return 0.5 + 1 - first_wins(2 * abs(gap), sigma)


def mean_before_width(gap: float = 2.0, small: float = 0.1, large: float = 5.0) -> Check:
    """Which way is up for the expected cross-entropy to uniform: a wider sigma, or means further apart?

    With d = gap + sigma sqrt 2 e: d/d gap = E[tanh(d/2) / 2], d/d sigma = E[sqrt 2 e tanh(d/2) / 2]. The second vanishes with
    sigma, the first does not; their ratio is sinh(gap) / (2 sigma) for small sigma.
    """
    slopes = {sigma: expected_slopes(gap, sigma) for sigma in (small, large)}
    ratios = {sigma: gap_slope / sigma_slope for sigma, (gap_slope, sigma_slope) in slopes.items()}
    return Check(
        "Maximising the cross-entropy to the uniform label moves the widths rather than the means",
        {f"logits {gap:g} apart, noise {sigma:g}": ratio < 1 for sigma, ratio in ratios.items()},
        f"slope for the means / slope for sigma: {ratios[small]:.0f} at noise {small:g}, {ratios[large]:.2f} at {large:g}",
        {"ratio_small": ratios[small], "ratio_formula": math.sinh(gap) / (2 * small), "ratio_large": ratios[large]},
    )


def expected_slopes(gap: float, sigma: float, points: int = 20_001) -> tuple[float, float]:
    """Derivatives of E[half_cross_entropy(gap + sigma sqrt 2 e)] by gap and sigma, by the trapezium rule on [-10, 10]."""
    e = torch.linspace(-10, 10, points, dtype=torch.float64)
    weight = (-e.square() / 2).exp() / math.sqrt(2 * math.pi)
    slope = ((gap + sigma * math.sqrt(2) * e) / 2).tanh() / 2
    return torch.trapezoid(weight * slope, e).item(), torch.trapezoid(weight * slope * math.sqrt(2) * e, e).item()


def _id_labels(seed: int, classes: int, inputs: int, margin: float) -> Tensor:
    """p(y | x) of inputs that are ID by the paper's definition: densities in (0, 1], one lifted above the others."""
    generator = _generator(seed)
    width = 5 * torch.rand(inputs, 1, generator=generator, dtype=torch.float64)
    density = (width * torch.randn(inputs, classes, generator=generator, dtype=torch.float64)).exp()
    density = density / density.amax(1, keepdim=True)
    density = density + margin * (density == 1)
    return density / density.sum(1, keepdim=True)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


THEOREM_CHECKS: dict[str, Callable[[int], Check]] = {
    "label_variance": label_variance,
    "coin_toss": coin_toss,
    "distance_and_noise": distance_and_noise,
    "kl_width": lambda seed: kl_width(),
    "noise_and_cross_entropy": noise_and_cross_entropy,
    "mean_before_width": lambda seed: mean_before_width(),
}
