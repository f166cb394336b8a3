"""Directions that classes claim, against the formula and where there is nothing to claim."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from abnn.bayes.claims import claims_of
from tests.conftest import generator


def share_by_hand(weight: Tensor, c: Tensor) -> Tensor:
    rows, c = weight.double(), c.double()
    ridge = rows.square().sum() / rows.shape[1] * torch.eye(rows.shape[1])
    said = torch.linalg.solve(rows.T @ rows + ridge, rows.T @ rows @ c.T)
    return (c.T * said).sum(0) / c.square().sum(1)


@pytest.mark.parametrize(("classes", "features"), [(3, 7), (7, 3), (5, 5), (2, 40), (60, 20)])
def test_the_claimed_share_equals_its_formula(classes: int, features: int) -> None:
    weight = torch.randn(classes, features, generator=generator(0))
    c = torch.randn(9, features, generator=generator(1))
    claims = claims_of(weight)
    assert claims.shape == (min(classes, features), features) and claims.dtype == torch.float32
    share = (c @ claims.T).square().sum(1) / c.square().sum(1)
    torch.testing.assert_close(share, share_by_hand(weight, c).float(), rtol=1e-4, atol=1e-5)
    assert (share < 1).all()


def test_what_no_class_reads_is_not_claimed() -> None:
    weight = torch.eye(6)[:4]
    own, none = torch.eye(6)[0], torch.eye(6)[5]
    claims = claims_of(weight)
    assert (claims @ none).norm() == 0 and (claims @ own).norm() > 0.7


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
@pytest.mark.parametrize("value", [0.0, 1e-20, 1.0, 1e15])
def test_weights_without_directions_give_numbers(shape: tuple[int, int], value: float) -> None:
    claims = claims_of(torch.full(shape, value))
    assert claims.isfinite().all() and torch.linalg.matrix_norm(claims, 2) <= 1.001


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_weights_that_are_no_numbers_are_no_error(shape: tuple[int, int]) -> None:
    assert claims_of(torch.full(shape, torch.nan)).shape == (3, shape[1])


def test_gradients_and_other_types_do_not_matter() -> None:
    weight = torch.randn(4, 6, generator=generator(0)).requires_grad_(True)
    assert not claims_of(weight).requires_grad
    torch.testing.assert_close(claims_of(weight.bfloat16().float()), claims_of(weight.bfloat16()))
