"""The last-layer posterior against an independent Gauss-Newton matrix and against the library's own predictions."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor

from abnn.baselines.posthoc import Features, Head, PostHocModel, build_posthoc
from abnn.baselines.posthoc.base import library
from abnn.baselines.posthoc.laplace import LIBRARY, fit_posterior, full_variances, kron_variances, probit_logits
from abnn.errors import MissingExtraError
from abnn.predict import Plain
from tests.conftest import generator, mlp

from .samples import CLASSES, WIDTH, batches, digit_reader, made_up


@pytest.fixture
def needs_library() -> None:
    try:
        library(*LIBRARY)
    except MissingExtraError:
        pytest.skip("laplace-torch is not installed")


def without_bias(features: Features) -> Features:
    assert features.head is not None and features.last is not None
    head = Head(features.head.weight)
    return Features(head(features.last), features.last, None, features.labels, head)


def test_variances_are_quadratic_forms() -> None:
    last = torch.randn(5, 3, generator=generator(1))
    root = torch.randn(2, 4, 4, generator=generator(2))
    covariance = root @ root.mT
    extended = np.concatenate([last.numpy(), np.ones((5, 1))], axis=1)
    expected = [[row @ block @ row for block in covariance.numpy()] for row in extended]
    np.testing.assert_allclose(full_variances(last, covariance).numpy(), expected, rtol=1e-4)

    rotation = torch.linalg.qr(torch.randn(3, 3, generator=generator(3))).Q
    spread, bias = torch.rand(2, 3, generator=generator(4)), torch.rand(2, generator=generator(5))
    blocks = torch.zeros(2, 4, 4)
    blocks[:, :3, :3] = rotation @ torch.diag_embed(spread) @ rotation.T
    blocks[:, 3, 3] = bias
    torch.testing.assert_close(kron_variances(last, rotation, spread, bias), full_variances(last, blocks))


def test_probit_pulls_towards_uniform() -> None:
    logits = torch.tensor([[3.0, 1.0]])
    torch.testing.assert_close(probit_logits(logits, torch.zeros(1, 2)), logits)
    torch.testing.assert_close(probit_logits(logits, torch.full((1, 2), 8 / math.pi)), logits / math.sqrt(2))


def gauss_newton(features: Features) -> np.ndarray:
    """sum_n (diag p - p p^T) (x) h~ h~^T, classes outermost."""
    assert features.last is not None
    extended = np.concatenate([features.last.double().numpy(), np.ones((len(features), 1))], axis=1)
    p = softmax(features.logits.double().numpy(), axis=1)
    curvature = np.einsum("nk,kl->nkl", p, np.eye(CLASSES)) - p[:, :, None] * p[:, None, :]
    size = CLASSES * (WIDTH + 1)
    return np.einsum("nkl,nd,ne->kdle", curvature, extended, extended).reshape(size, size)


@pytest.mark.usefixtures("needs_library")
@pytest.mark.no_cover
def test_full_posterior_is_the_inverse_gauss_newton_matrix() -> None:
    train, test = made_up(), made_up(20, seed=7, spread=3)
    assert train.head is not None and train.last is not None and train.labels is not None and test.last is not None
    score = build_posthoc("laplace", structure="full")
    score.fit(train)
    prior = float(fit_posterior(train.head, train.last, train.labels, "full").prior_precision)
    precision = gauss_newton(train) + prior * np.eye(CLASSES * (WIDTH + 1))
    blocks = np.linalg.inv(precision).reshape(CLASSES, WIDTH + 1, CLASSES, WIDTH + 1)
    expected = np.stack([blocks[k, :, k] for k in range(CLASSES)])
    np.testing.assert_allclose(score.state["covariance"].numpy(), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("needs_library")
@pytest.mark.parametrize("structure", ["full", "kron"])
@pytest.mark.parametrize("change", [lambda features: features, without_bias])
def test_score_is_the_entropy_of_the_librarys_prediction(structure: str, change: Any) -> None:
    train, test = change(made_up()), change(made_up(20, seed=7, spread=3))
    score = build_posthoc("laplace", structure=structure)
    score.fit(train)
    posterior = fit_posterior(train.head, train.last, train.labels, structure)
    probs = posterior(test.last, pred_type="glm", link_approx="probit").detach()
    expected = -(probs * probs.log()).sum(1) / math.log(CLASSES)
    torch.testing.assert_close(score.score(test), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("needs_library")
def test_on_a_network_and_back_from_a_file(tmp_path: Any, monkeypatch: Any) -> None:
    network, digits = digit_reader()
    plain = Plain(network, digits.train.x[:1])
    model = PostHocModel(plain, ("laplace",)).fit(batches(digits.train))
    expected = model.predict(digits.test.x)
    model.save(tmp_path / "scores")
    monkeypatch.setitem(sys.modules, "laplace", None)  # scoring and loading need no library
    again = PostHocModel.load(tmp_path / "scores", plain).predict(digits.test.x)
    assert torch.equal(again.own["laplace"], expected.own["laplace"])
    # Less certain than the weights alone, wherever these are not at a loss already.
    plain_entropy: Tensor = expected.score_by("entropy")
    assert (expected.own["laplace"] > plain_entropy - 1e-6).float().mean() > 0.95


def test_without_the_library(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(MissingExtraError, match=r"laplace-torch is not installed.*abnn\[posthoc\]"):
        build_posthoc("laplace").fit(made_up())

    def never() -> Any:
        raise AssertionError("the data must not be read before the extra is there")
        yield

    with pytest.raises(MissingExtraError, match="laplace-torch"):
        PostHocModel(Plain(mlp(), torch.zeros(1, 6)), ("laplace",)).fit(never())
