"""Corruptions against references that are known, and what all of them have in common."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from research.paper.beyond.corruptions import (
    CORRUPTIONS,
    blur,
    brightness,
    contrast,
    corrupt,
    noise,
    pixelate,
    rotation,
    shift,
)

GENERATOR = torch.Generator()


@pytest.fixture
def x() -> torch.Tensor:
    """Smooth images, for which a stronger change is a larger one."""
    rough = torch.rand(16, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    return F.interpolate(rough, [28, 28], mode="bilinear", align_corners=False)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_every_strength_is_stronger_than_the_one_before(name: str, x: torch.Tensor) -> None:
    before = x.clone()
    distances = [0.0]
    for strength in range(1, 6):
        made = corrupt(x, name, strength, seed=3)
        assert made.shape == x.shape and made.dtype == x.dtype
        assert made.min() >= -1e-6 and made.max() <= 1 + 1e-6
        torch.testing.assert_close(corrupt(x, name, strength, seed=3), made, rtol=0, atol=0)
        distances.append(float((made - x).pow(2).mean()))
    assert distances == sorted(distances) and distances[1] > 0
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", ["blur", "pixelate", "rotation", "shift", "contrast"])
def test_an_image_of_one_level_has_nothing_to_lose(name: str) -> None:
    flat = torch.full((2, 3, 16, 16), 0.3)
    torch.testing.assert_close(corrupt(flat, name, 5, seed=0), flat)


def test_known_references(x: torch.Tensor) -> None:
    torch.testing.assert_close(
        contrast(x, 0.2, GENERATOR).mean(dim=(1, 2, 3)), x.mean(dim=(1, 2, 3)), rtol=1e-5, atol=1e-6
    )
    torch.testing.assert_close(brightness(x, 0.25, GENERATOR), (x + 0.25).clamp(max=1))
    torch.testing.assert_close(pixelate(x, 1.0, GENERATOR), x)
    blocks = pixelate(x, 0.5, GENERATOR)
    torch.testing.assert_close(blocks, F.avg_pool2d(blocks, 2).repeat_interleave(2, 2).repeat_interleave(2, 3))
    torch.testing.assert_close(blocks.mean(), x.mean(), rtol=0.01, atol=0)
    for image, turned in zip(x, rotation(x, 90.0, torch.Generator().manual_seed(0))):
        quarters = [torch.rot90(image, k, (1, 2)) for k in (1, 3)]
        assert any(torch.allclose(turned, each, atol=1e-4) for each in quarters)
    torch.testing.assert_close(rotation(x, 0.0, GENERATOR), x, rtol=0, atol=1e-5)


def test_blur_is_the_product_of_two_gaussians() -> None:
    point = torch.zeros(1, 1, 21, 21)
    point[0, 0, 10, 10] = 1
    spread = blur(point, 1.5, GENERATOR)[0, 0]
    steps = torch.arange(21.0) - 10
    bell = torch.where(steps.abs() <= 5, torch.exp(-0.5 * (steps / 1.5) ** 2), 0.0)
    torch.testing.assert_close(spread, torch.outer(bell, bell) / bell.sum() ** 2)


def test_shift_keeps_its_length() -> None:
    point = torch.zeros(64, 1, 41, 41)
    point[:, :, 18:23, 18:23] = 1
    moved = shift(point, 0.2, torch.Generator().manual_seed(0))
    steps = torch.arange(41.0) - 20
    mass = moved.sum(dim=(1, 2, 3))
    down = (moved.sum(dim=(1, 3)) * steps).sum(1) / mass
    right = (moved.sum(dim=(1, 2)) * steps).sum(1) / mass
    torch.testing.assert_close(torch.hypot(down, right), torch.full((64,), 0.2 * 41), rtol=0.01, atol=0.05)
    assert len({(round(float(a)), round(float(b))) for a, b in zip(down, right)}) > 20


def test_noise_has_its_spread() -> None:
    grey = torch.full((4, 1, 64, 64), 0.5)
    made = noise(grey, 0.05, torch.Generator().manual_seed(0))
    assert float(made.std()) == pytest.approx(0.05, rel=0.03)  # 16384 values: a standard error of 0.6 %
