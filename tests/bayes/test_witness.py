"""Witnesses: equal to numpy, zero half-way, silent without outliers, and bounded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from abnn.bayes.closed_form import ClosedForm
from abnn.bayes.witness import CUT, FEWEST, KINDS, Witness, cut
from tests.conftest import generator

PLACES, WIDTH = 3, 5


def inputs(count: int, shift: float, spread: float, seed: int) -> Tensor:
    """[N, places · width]: moved along one direction of the second place."""
    x = spread * torch.randn(count, PLACES, WIDTH, generator=generator(seed))
    x[:, 1, 2] += shift
    return x.flatten(1)


def kinds(count: int = 300) -> list[Tensor]:
    return [inputs(count, 0, 1, 1), inputs(count // 2, 1, 1.5, 2), inputs(count // 3, 4, 2, 3)]


def as_places(x: Tensor) -> Tensor:
    return x.unflatten(1, (PLACES, WIDTH)).transpose(0, 1)


def taught(data: list[Tensor]) -> Witness:
    witness = Witness(PLACES, WIDTH)
    witness.learn(data)
    return witness


def kinds_of(witness: Witness, white: Tensor) -> Tensor:
    """Return z of both kinds, [B, 2], as a closed form computes it whose features are white already."""
    form = ClosedForm([WIDTH] * PLACES)
    form.whitenings.copy_(torch.eye(WIDTH).expand(PLACES, -1, -1))
    form.witness = witness
    return form(list(white))[:, PLACES:]


@pytest.mark.parametrize("count", [60, 300, 2000])
def test_equals_numpy(count: int) -> None:
    data, x = kinds(count), inputs(20, 2, 1, 5)
    arrays = [each.double().numpy() for each in data]
    means = np.stack([each.mean(0) for each in arrays])
    covariance = np.mean([each.T @ each / len(each) for each in arrays], 0) - np.outer(means.mean(0), means.mean(0))
    share = min(0.9, max(0.05, PLACES * WIDTH / sum(map(len, arrays))))
    shrunk = (1 - share) * covariance + share * np.diag(covariance).mean() * np.eye(PLACES * WIDTH)
    for kind in range(len(KINDS)):
        along = np.linalg.solve(shrunk, means[kind + 1] - means[0])
        expected = x.double().numpy() @ along - along @ (means[kind + 1] + means[0]) / 2
        actual = kinds_of(taught(data), as_places(x))[:, kind].numpy()
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-3)


def test_ordinary_inputs_look_ordinary_and_others_do_not() -> None:
    witness = taught(kinds(3000))
    ordinary, changed, destroyed = (kinds_of(witness, as_places(each)).mean(0) for each in kinds(3000))
    assert (ordinary < 0).all() and changed[0] > 0 and destroyed[1] > 0 and destroyed[1] > changed[1]


def test_without_outliers_it_says_nothing() -> None:
    """Also after it has learnt something else, and of a kind with too few inputs."""
    witness = taught(kinds())
    x = as_places(inputs(20, 2, 1, 5))
    assert kinds_of(witness, x).ne(0).all()
    witness.learn([kinds()[0], torch.zeros(0, 0), torch.zeros(0, 0)])
    assert kinds_of(witness, x).eq(0).all()
    few = [kinds()[0], kinds()[1][: FEWEST - 1], kinds()[2]]
    outputs = kinds_of(taught(few), x)
    assert outputs[:, 0].eq(0).all() and outputs[:, 1].ne(0).all()


def test_what_it_says_is_bounded_and_finite() -> None:
    witness = taught(kinds())
    most = CUT * witness.weight.abs().sum((0, 1)) + witness.bias.abs()
    values = torch.tensor([0.0, 1e6, -1e30, float("inf"), -float("inf"), float("nan")])
    outputs = kinds_of(witness, values[None, :, None].expand(PLACES, -1, WIDTH))
    assert outputs.isfinite().all() and (outputs.abs() <= most + 1e-4).all()
    assert torch.equal(cut(values), torch.tensor([0.0, CUT, -CUT, CUT, -CUT, CUT]))


def test_inputs_that_are_all_the_same_break_nothing() -> None:
    same = [torch.zeros(40, PLACES * WIDTH)] * 3
    assert kinds_of(taught(same), as_places(inputs(5, 0, 1, 0))).isfinite().all()
