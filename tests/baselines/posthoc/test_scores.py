"""Every score against an independent computation, its invariances, and what it refuses."""

from __future__ import annotations

import ast
import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import logsumexp, softmax
from scipy.stats import entropy as scipy_entropy
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from abnn.baselines import posthoc
from abnn.baselines.posthoc import POSTHOC, Features, Head, PostHoc, PostHocModel, adascale, build_posthoc
from abnn.baselines.posthoc.logits import energy, entropy, gen, max_logit, max_logit_pnorm
from abnn.baselines.posthoc.mahalanobis import squared_distances
from abnn.baselines.posthoc.pytorch_ood import detectors
from abnn.baselines.posthoc.residual import usual_dimensions
from abnn.bayes.gaussians import oas_shrinkage
from abnn.errors import InputError, MissingExtraError, NotFittedError
from tests.conftest import generator

from .samples import CLASSES, WIDTH, made_up

LEARNING = [name for name, kind in POSTHOC.items() if kind.learns and name not in ("laplace", "adascale")]


@pytest.fixture
def logits() -> Tensor:
    return 5 * torch.randn(50, 7, generator=generator(3))


def array(tensor: Tensor | None) -> np.ndarray:
    assert tensor is not None
    return tensor.double().numpy()


def fitted(name: str, **settings: Any) -> PostHoc:
    score = build_posthoc(name, **settings)
    score.fit(made_up())
    return score


def head_logits(features: Features, last: np.ndarray) -> np.ndarray:
    assert features.head is not None
    return last @ array(features.head.weight).T + array(features.head.bias)


# -- from the logits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_energy(logits: Tensor, temperature: float) -> None:
    expected = -temperature * logsumexp(array(logits) / temperature, axis=1)
    np.testing.assert_allclose(energy(logits, temperature).numpy(), expected, rtol=1e-5)
    # A shift of all logits shows, in full: E(z + c) = E(z) - c.
    torch.testing.assert_close(energy(logits + 2.5, temperature), energy(logits, temperature) - 2.5)


def test_max_logit_is_the_energy_at_temperature_zero(logits: Tensor) -> None:
    np.testing.assert_array_equal(max_logit(logits).numpy(), -logits.numpy().max(1))
    torch.testing.assert_close(energy(logits, 1e-3), max_logit(logits), rtol=0, atol=1e-3 * math.log(7))


@pytest.mark.parametrize("power", [1.0, 2.0, 5.0])
def test_max_logit_pnorm(logits: Tensor, power: float) -> None:
    centred = array(logits) - array(logits).mean(1, keepdims=True)
    expected = -centred.max(1) / (np.abs(centred) ** power).sum(1) ** (1 / power)
    np.testing.assert_allclose(max_logit_pnorm(logits, power).numpy(), expected, rtol=1e-5)
    torch.testing.assert_close(max_logit_pnorm(3 * logits + 2, power), max_logit_pnorm(logits, power))
    assert torch.equal(max_logit_pnorm(torch.ones(2, 3)), torch.zeros(2))


def test_entropy(logits: Tensor) -> None:
    expected = scipy_entropy(softmax(array(logits), axis=1), axis=1) / np.log(7)
    np.testing.assert_allclose(entropy(logits).numpy(), expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(entropy(logits + 9), entropy(logits), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("gamma", "largest"), [(0.1, 100), (0.1, 3), (0.5, 7), (1.0, 1)])
def test_gen(logits: Tensor, gamma: float, largest: int) -> None:
    p = -np.sort(-softmax(array(logits), axis=1), axis=1)[:, :largest]
    np.testing.assert_allclose(gen(logits, gamma, largest).numpy(), (p**gamma * (1 - p) ** gamma).sum(1), rtol=1e-4)
    torch.testing.assert_close(gen(logits + 9), gen(logits), rtol=1e-4, atol=0)


def test_gen_keeps_its_order_where_the_softmax_rounds_to_one() -> None:
    """1 - p is 3 e^-20 and less here; float32 knows no number between 1 - 6e-8 and 1."""
    margins = torch.tensor([20.0, 40.0, 60.0])
    logits = torch.cat([margins[:, None], torch.zeros(3, 3)], dim=1)
    p = 1 / (np.exp(array(margins)) + 3)
    expected = (3 * p) ** 0.1 * (1 - 3 * p) ** 0.1 + 3 * (p * (1 - p)) ** 0.1
    np.testing.assert_allclose(gen(logits).numpy(), expected, rtol=1e-5)


# -- from the last features ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [1, 5, 50])
def test_knn_is_sklearns(neighbours: int) -> None:
    train, test = made_up(), made_up(30, seed=7, spread=3)

    def unit(tensor: Tensor | None) -> np.ndarray:
        return array(tensor) / np.linalg.norm(array(tensor), axis=1, keepdims=True)

    search = NearestNeighbors(n_neighbors=neighbours).fit(unit(train.last))
    expected = search.kneighbors(unit(test.last))[0][:, -1]
    score = fitted("knn", neighbours=neighbours)
    np.testing.assert_allclose(score.score(test).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_knn_does_not_see_lengths() -> None:
    score, test = fitted("knn"), made_up(30, seed=7)
    assert test.last is not None
    lengths = torch.rand(30, 1, generator=generator(1)) * 9 + 0.1
    scaled = dataclasses.replace(test, last=test.last * lengths)
    torch.testing.assert_close(score.score(scaled), score.score(test), rtol=1e-5, atol=1e-6)


def test_knn_stores_a_seeded_choice_and_no_more() -> None:
    first, again, other = (fitted("knn", stored=20, seed=seed).state["stored"] for seed in (0, 0, 1))
    assert first.shape == (20, WIDTH) and torch.equal(first, again) and not torch.equal(first, other)
    everything = fitted("knn").state["stored"]
    assert all((everything == row).all(1).any() for row in first)
    assert len(torch.unique(first, dim=0)) == 20


def test_knn_with_more_neighbours_than_there_are_takes_the_farthest() -> None:
    all_of_them, too_many = (fitted("knn", stored=6, neighbours=number) for number in (6, 99))
    assert torch.equal(all_of_them.score(made_up(4, seed=7)), too_many.score(made_up(4, seed=7)))


def reference_squares(train: np.ndarray, labels: np.ndarray, test: np.ndarray) -> np.ndarray:
    """(f - m_c)^T C^-1 (f - m_c), C pooled over classes and shrunk on standardised features."""
    means = np.stack([train[labels == c].mean(0) for c in np.unique(labels)])
    centred = train - means[labels]
    scale = centred.std(0)
    correlation = (centred / scale).T @ (centred / scale) / len(centred)
    rho = oas_shrinkage(torch.from_numpy(correlation), len(centred))
    precision = np.linalg.inv((1 - rho) * correlation + (rho + 1e-6) * np.eye(len(scale)))
    gaps = (test[:, None] - means[None]) / scale
    return np.einsum("bcf,fg,bcg->bc", gaps, precision, gaps)


@pytest.mark.parametrize("suffix", ["", "-blocks", "-l2"])
def test_mahalanobis_and_relative(suffix: str) -> None:
    train, test = made_up(), made_up(30, seed=7, spread=3)
    x, y = (array(each.blocks if suffix == "-blocks" else each.last) for each in (train, test))
    if suffix == "-l2":
        x, y = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (x, y))
    labels = np.asarray(train.labels)
    to_classes = reference_squares(x, labels, y).min(1)
    to_all = reference_squares(x, np.zeros_like(labels), y)[:, 0]
    distance = fitted(f"mahalanobis{suffix}").score(test).numpy()
    np.testing.assert_allclose(distance, np.sqrt(to_classes / x.shape[1]), rtol=1e-4)
    relative = fitted(f"relative-mahalanobis{suffix}").score(test).numpy()
    size = (to_classes + to_all).max() / x.shape[1]
    np.testing.assert_allclose(relative, (to_classes - to_all) / x.shape[1], atol=1e-5 * size)


def affine(last: Tensor | None, matrix: Tensor) -> Tensor:
    assert last is not None
    return last @ matrix.T + torch.arange(float(WIDTH))


def test_mahalanobis_is_affine_invariant() -> None:
    """f -> A f + b changes nothing: exactly for the formula, and for the fit when shrinkage is small."""
    x, means = torch.randn(9, WIDTH, generator=generator(1)).double(), torch.randn(3, WIDTH, generator=generator(2))
    whitening, matrix = (torch.randn(WIDTH, WIDTH, generator=generator(seed)).double() for seed in (3, 4))
    left = squared_distances(x, means.double(), whitening)
    moved = squared_distances(x @ matrix.T + 5, means.double() @ matrix.T + 5, whitening @ torch.linalg.inv(matrix))
    torch.testing.assert_close(moved, left)

    train, test = made_up(100_000), made_up(30, seed=7)
    mixing = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator(5))).Q * torch.linspace(1, 2, WIDTH)
    scaling = torch.diag(torch.logspace(-2, 2, WIDTH))
    for name in ("mahalanobis", "relative-mahalanobis"):
        score = build_posthoc(name)
        score.fit(train)
        expected = score.score(test)
        # Shrinkage, below 2e-4 for so many inputs, works on correlations: scales drop out in full; rotations up to its
        # share of the smallest eigenvalue, which is above 0.05.
        for matrix, tolerance in ((scaling, 1e-4), (mixing, 1e-2)):
            score.fit(dataclasses.replace(train, last=affine(train.last, matrix)))
            moved = score.score(dataclasses.replace(test, last=affine(test.last, matrix)))
            torch.testing.assert_close(moved, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dimensions", [None, 3, 11])
def test_vim(dimensions: int | None) -> None:
    """Against the paper's equations with a singular value decomposition instead of eigenvectors."""
    train, test = made_up(), made_up(30, seed=7, spread=3)
    assert train.head is not None
    weight, bias = array(train.head.weight), array(train.head.bias)
    origin = -np.linalg.pinv(weight) @ bias
    _, _, directions = np.linalg.svd(array(train.last) - origin)
    residual = directions[WIDTH // 2 if dimensions is None else dimensions :]
    norms = [np.linalg.norm((array(each.last) - origin) @ residual.T, axis=1) for each in (train, test)]
    scale = array(train.logits).max(1).mean() / norms[0].mean()
    expected = scale * norms[1] - logsumexp(array(test.logits), axis=1)
    score = fitted("vim", dimensions=dimensions)
    np.testing.assert_allclose(score.score(test).numpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(fitted("residual", dimensions=dimensions).score(test).numpy(), norms[1], rtol=1e-4)


def test_vim_dimensions_are_the_papers() -> None:
    assert [usual_dimensions(width) for width in (64, 767, 768, 1499, 1500, 2048)] == [32, 383, 512, 512, 1000, 1000]


@pytest.mark.parametrize("pruned", [0.0, 0.5, 0.9])
def test_ash(pruned: float) -> None:
    test = made_up(30, seed=7)
    assert test.last is not None and test.head is not None
    head = test.head
    test = dataclasses.replace(test, last=test.last.relu())
    expected = []
    for row in array(test.last):
        kept = row.copy()
        kept[np.argsort(row)[: round(WIDTH * pruned)]] = 0
        kept *= np.exp(row.sum() / kept.sum())
        expected.append(-logsumexp(array(head.weight) @ kept + array(head.bias)))
    np.testing.assert_allclose(build_posthoc("ash", pruned=pruned).score(test).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("pruned", [0.0, 0.5, 0.85])
def test_scale(pruned: float) -> None:
    test = made_up(30, seed=7)
    rows = array(test.last).clip(0)
    largest = -np.sort(-rows, axis=1)[:, : WIDTH - round(WIDTH * pruned)]
    scaled = rows * np.exp(rows.sum(1) / largest.sum(1))[:, None]
    score = build_posthoc("scale", pruned=pruned).score(dataclasses.replace(test, last=torch.tensor(rows).float()))
    np.testing.assert_allclose(score.numpy(), -logsumexp(head_logits(test, scaled), axis=1), rtol=1e-4)


@pytest.mark.parametrize("name", ["ash", "scale"])
def test_features_of_zeros_are_not_scaled(name: str) -> None:
    test = made_up(2)
    assert test.head is not None
    nothing = dataclasses.replace(test, last=torch.zeros(2, WIDTH))
    torch.testing.assert_close(build_posthoc(name).score(nothing), energy(test.head.bias[None]).expand(2))


@pytest.mark.parametrize("name", ["ash", "scale"])
def test_negative_features_get_finite_scores(name: str) -> None:
    """Those of hard-swish can be negative: what ASH keeps can then sum up to nearly nothing, and its scale to infinity."""
    test, last = made_up(3), torch.full((3, WIDTH), -1.0)
    last[:, : WIDTH // 2] = torch.tensor([[1.0], [1e-3], [-1e-3]])
    assert build_posthoc(name).score(dataclasses.replace(test, last=100 * last)).isfinite().all()


@pytest.mark.parametrize("neighbours", [1, 10, 500])
def test_nnguide(neighbours: int) -> None:
    train, test = made_up(), made_up(30, seed=7)

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    bank = unit(array(train.last)) * logsumexp(array(train.logits), axis=1)[:, None]
    guidance = -np.sort(-unit(array(test.last)) @ bank.T, axis=1)[:, :neighbours].mean(1)
    expected = -guidance * logsumexp(array(test.logits), axis=1)
    score = fitted("nnguide", neighbours=neighbours).score(test).numpy()
    np.testing.assert_allclose(score, expected, rtol=1e-4, atol=1e-4)
    assert fitted("nnguide", stored=20).state["bank"].shape == (20, WIDTH)


def test_fdbd() -> None:
    train, test = made_up(), made_up(30, seed=7)
    assert train.head is not None
    weight, mean = array(train.head.weight), array(train.last).mean(0)
    expected = []
    for row, logits in zip(array(test.last), array(test.logits)):
        top = logits.argmax()
        gaps = [(logits[top] - logits[c]) / np.linalg.norm(weight[top] - weight[c]) for c in range(CLASSES) if c != top]
        expected.append(-np.mean(gaps) / np.linalg.norm(row - mean))
    np.testing.assert_allclose(fitted("fdbd").score(test).numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_nci(alpha: float) -> None:
    train, test = made_up(), made_up(30, seed=7)
    assert train.head is not None
    last, centred = array(test.last), array(test.last) - array(train.last).mean(0)
    along = (centred * array(train.head.weight)[array(test.logits).argmax(1)]).sum(1) / np.linalg.norm(centred, axis=1)
    expected = -along - alpha * np.abs(last).sum(1)
    np.testing.assert_allclose(fitted("nci", alpha=alpha).score(test).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_react() -> None:
    train, test = made_up(), made_up(30, seed=7)
    ceiling = np.quantile(array(train.last), 0.8)
    expected = -logsumexp(head_logits(test, np.minimum(array(test.last), ceiling)), 1)
    score = fitted("react", quantile=0.8)
    np.testing.assert_allclose(score.score(test).numpy(), expected, rtol=1e-4)
    # A ceiling above everything leaves the energy.
    score.state["ceiling"] = torch.tensor(1e6)
    torch.testing.assert_close(score.score(test), energy(test.logits))


# -- with the gradient -----------------------------------------------------------------------------------------------


def linear(x: Tensor) -> tuple[Tensor, Tensor]:
    head = made_up(1).head
    assert head is not None
    return x, head(x)


@pytest.mark.parametrize(("temperature", "step"), [(1.0, 0.0), (10.0, 0.1), (1000.0, 0.0014)])
def test_odin_on_a_linear_network(temperature: float, step: float) -> None:
    """grad ln p_y = (w_y - sum_k p_k w_k) / T, in closed form."""
    features = made_up(40, seed=7)
    assert features.head is not None
    weight, bias, x = array(features.head.weight), array(features.head.bias), array(features.last)
    p = softmax((x @ weight.T + bias) / temperature, axis=1)
    stepped = x + step * np.sign(weight[p.argmax(1)] - p @ weight)
    largest = softmax((stepped @ weight.T + bias) / temperature, axis=1).max(1)
    given = dataclasses.replace(features, inputs=features.last, network=linear)
    score = build_posthoc("odin", temperature=temperature, step=step).score(given)
    np.testing.assert_allclose(score.numpy(), -largest, rtol=1e-5)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["odin", "adascale"])
def test_gradients_are_there_wherever_a_score_is_called(name: str, mode: Any) -> None:
    features = with_network(5)
    score = build_posthoc(name)
    score.fit(features)
    expected = score.score(features)
    with mode():
        assert features.inputs is not None
        again = score.score(dataclasses.replace(features, inputs=features.inputs.clone()))
    torch.testing.assert_close(again, expected)
    assert features.inputs.grad is None and not expected.requires_grad


def with_network(count: int, seed: int = 0) -> Features:
    features = made_up(count, seed)
    return dataclasses.replace(features, inputs=features.last, network=linear)


def test_adascale_follows_its_formulas() -> None:
    """Against a loop over single inputs; the network is linear, so that its gradient is a row of the weights."""
    train, test = with_network(60), with_network(30, seed=7)
    assert train.head is not None
    weight = array(train.head.weight)
    options = {"low": 0.3, "high": 0.7, "kept": 0.3, "moved": 0.2, "weight": 2.0, "share": 0.25, "step": 0.4}

    def stability(row: np.ndarray, logits: np.ndarray) -> float:
        gradient = weight[logits.argmax()]
        chosen = np.argsort(np.abs(gradient))[:3]  # a quarter of twelve
        changed = row.copy()
        changed[chosen] += 0.4 * np.sign(gradient[chosen])
        order = np.argsort(-row)
        return changed.clip(0)[order[:3]].sum() + 2 * np.abs(changed - row)[order[:2]].sum()

    known = np.array([stability(*pair) for pair in zip(array(train.last), array(train.logits))])
    expected = []
    for row, logits in zip(array(test.last), array(test.logits)):
        share = 0.3 + (known > stability(row, logits)).mean() * 0.4
        positive = -np.sort(-row.clip(0))
        scale = np.exp(positive.sum() / positive[: WIDTH - round(WIDTH * share)].sum())
        expected.append(-logsumexp(head_logits(test, row[None] * scale), axis=1)[0])
    score = build_posthoc("adascale", **options)
    score.fit(train)
    np.testing.assert_allclose(score.score(test).numpy(), expected, rtol=1e-4)
    noted = dataclasses.replace(train, inputs=None, network=None, notes={"adascale": score.note(train)})
    again = build_posthoc("adascale", **options)
    again.fit(noted)  # what was noted when the network was at hand is enough
    assert torch.equal(again.score(test), score.score(test))


def test_adascale_of_features_that_are_zero() -> None:
    assert torch.equal(adascale.scale(torch.zeros(2, 5), torch.tensor([0.5, 0.9])), torch.zeros(2, 5))


# -- all -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEARNING)
def test_far_inputs_score_higher(name: str) -> None:
    """Ten times the training features' distance from their mean, with logits as if nothing was known."""
    near, far = made_up(50, seed=7), made_up(50, seed=7, spread=10)
    assert far.head is not None
    quiet = Head(far.head.weight * 1e-3, far.head.bias)
    far = dataclasses.replace(far, logits=torch.zeros(50, CLASSES), head=quiet)
    score = fitted(name)
    assert score.score(far).median() > score.score(near).median()


@pytest.mark.parametrize("name", [name for name in POSTHOC if name not in ("odin", "adascale", "laplace")])
def test_scores_do_not_depend_on_the_batch(name: str) -> None:
    score, test = fitted(name), made_up(20, seed=7)
    assert test.last is not None and test.blocks is not None
    rows = [
        Features(test.logits[i : i + 1], test.last[i : i + 1], test.blocks[i : i + 1], None, test.head)
        for i in range(20)
    ]
    together = score.score(test)
    assert together.shape == (20,) and torch.isfinite(together).all()
    torch.testing.assert_close(together, torch.cat([score.score(row) for row in rows]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LEARNING)
def test_fitting_again_forgets(name: str) -> None:
    score, test = fitted(name), made_up(20, seed=7)
    first = score.score(test)
    score.fit(made_up(150, seed=50, spread=2))
    assert not torch.allclose(score.score(test), first)
    score.fit(made_up())
    assert torch.equal(score.score(test), first)


@pytest.mark.parametrize("name", [*LEARNING, "laplace", "adascale"])
def test_asking_before_fitting(name: str) -> None:
    with pytest.raises(NotFittedError, match=f"score: '{name}' learns from training data.*fit"):
        build_posthoc(name).score(with_network(5))


@pytest.mark.parametrize(
    ("name", "part"),
    [("knn", "last"), ("vim", "head"), ("mahalanobis-blocks", "blocks"), ("mahalanobis", "labels")],
)
def test_missing_parts_are_named(name: str, part: str) -> None:
    without: dict[str, Any] = {part: None}
    features = dataclasses.replace(made_up(), **without)
    with pytest.raises(InputError, match=f"features: got none with '{part}'; accepted: for '{name}': the "):
        build_posthoc(name).fit(features)


@pytest.mark.parametrize("name", ["odin", "adascale"])
def test_gradients_need_inputs_and_real_numbers(name: str) -> None:
    with pytest.raises(InputError, match="'network'"):
        build_posthoc(name).score(dataclasses.replace(made_up(5), network=linear))
    whole = dataclasses.replace(made_up(5), inputs=torch.ones(5, WIDTH, dtype=torch.long), network=linear)
    score = build_posthoc(name)
    with pytest.raises(InputError, match="x: got dtype torch.int64"):
        score.fit(whole)
        score.score(whole)


def test_features_of_different_lengths() -> None:
    with pytest.raises(InputError, match="last: got 3 rows; accepted: 5"):
        Features(torch.zeros(5, 2), torch.zeros(3, 4))


@pytest.mark.parametrize("bad", [torch.zeros(0, 3), torch.zeros(3)])
def test_logits_of_another_shape(bad: Tensor) -> None:
    with pytest.raises(InputError, match="features: got logits of shape"):
        build_posthoc("energy").score(Features(bad))


def test_unknown_names() -> None:
    with pytest.raises(InputError, match="scores: got 'enrgy'.*Did you mean 'energy'"):
        build_posthoc("enrgy")
    with pytest.raises(InputError, match="setting of 'knn': got 'k'; accepted: neighbours, seed, stored"):
        build_posthoc("knn", k=3)
    with pytest.raises(InputError, match="setting of 'max-logit': got 'k'; accepted: none"):
        build_posthoc("max-logit", k=3)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("energy", {"temperature": 0.0}),
        ("gen", {"gamma": -1.0}),
        ("gen", {"largest": 0}),
        ("knn", {"neighbours": 0}),
        ("knn", {"stored": 1.5}),
        ("vim", {"dimensions": 0}),
        ("odin", {"temperature": math.inf}),
        ("odin", {"step": -0.1}),
        ("ash", {"pruned": 1.0}),
        ("react", {"quantile": -0.1}),
        ("scale", {"pruned": True}),
        ("nci", {"alpha": -1.0}),
        ("nnguide", {"neighbours": 0}),
        ("adascale", {"step": 0.0}),
        ("max-logit-pnorm", {"power": 0.0}),
        ("laplace", {"structure": "diag"}),
    ],
)
def test_bad_settings(name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{next(iter(settings))}: got .*accepted: "):
        build_posthoc(name, **settings)


def test_vim_of_too_many_dimensions() -> None:
    with pytest.raises(InputError, match=f"dimensions: got {WIDTH}; accepted: fewer than the {WIDTH} features"):
        fitted("vim", dimensions=WIDTH)


# -- the library -------------------------------------------------------------------------------------------------------


def test_logit_scores_are_the_librarys(logits: Tensor) -> None:
    detector, logits = detectors(), logits / 5  # it clips probabilities at 1e-7
    torch.testing.assert_close(energy(logits), detector.EnergyBased.score(logits))
    torch.testing.assert_close(max_logit(logits), detector.MaxLogit.score(logits))
    torch.testing.assert_close(gen(logits) / 7, detector.GEN.score(logits))
    torch.testing.assert_close(entropy(logits) * math.log(7), detector.Entropy.score(logits), rtol=1e-4, atol=1e-6)


def test_feature_scores_are_the_librarys() -> None:
    detector, train, test = detectors(), made_up(5000), made_up(30, seed=7, spread=3)
    assert train.head is not None
    # Mahalanobis without shrinkage there: the same up to its share of the smallest eigenvalue, for so many inputs.
    for name, theirs, change, tolerance in (
        ("vim", detector.ViM(None, WIDTH // 2, train.head.weight, train.head.bias), lambda s: s, 1e-3),
        ("mahalanobis", detector.Mahalanobis(None), lambda s: (2 * 5000 * s / WIDTH).sqrt(), 3e-2),
        ("relative-mahalanobis", detector.RMD(None), lambda s: 5000 * s / WIDTH, 3e-2),
    ):
        score = build_posthoc(name)
        score.fit(train)
        expected = change(theirs.fit_features(train.last, train.labels).predict_features(test.last))
        largest = float(expected.abs().max())
        torch.testing.assert_close(score.score(test), expected, rtol=tolerance, atol=tolerance * largest)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_ood", None)
    for name in ("knn", "ash", "odin"):
        with pytest.raises(MissingExtraError, match=r"pytorch-ood is not installed.*abnn\[posthoc\]"):
            build_posthoc(name).prepare()
    for name in PostHocModel.__init__.__defaults__[0]:  # type: ignore[index]
        build_posthoc(name).prepare()


def test_nothing_of_the_libraries_is_imported_before_it_is_needed() -> None:
    for file in Path(posthoc.__file__).parent.glob("*.py"):
        for node in ast.parse(file.read_text()).body:  # what runs when the module is imported
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {name.split(".")[0] for name in names} & {"pytorch_ood", "laplace", "torchvision"}, file
