"""Noise of a seed is made once, remembered, and never changed while passes may read it."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from abnn.attached import Attached
from abnn.bayes.noise import ALWAYS, MOST, Noise, NoiseCache, held_noise, no_noise, tensors_of


def same(first: Noise, second: Noise) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors_of(first), tensors_of(second), strict=True))


@pytest.mark.parametrize(("draws", "seed"), [(range(3), 0), (range(3), 7), (range(2, 5), 7), (range(1), 0)])
def test_noise_is_that_of_the_held_draws_of_the_seed(attached: Attached, draws: range, seed: int) -> None:
    attached.resample(draws, seed=seed)
    assert same(NoiseCache().get(attached.layers, draws, seed), held_noise(attached.layers))


def test_the_same_request_gets_the_same_tensors(attached: Attached) -> None:
    cache = NoiseCache()
    first = cache.get(attached.layers, range(3), 0)
    assert cache.get(attached.layers, range(3), 0) is first
    before = [part.clone() for part in tensors_of(first)]
    for seed in range(MOST + 3):
        cache.get(attached.layers, range(3), seed)
    assert len(cache) == MOST
    assert all(torch.equal(a, b) for a, b in zip(before, tensors_of(first)))  # another thread may still read it


def test_large_noise_is_remembered_for_a_few_requests(attached: Attached, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = NoiseCache()
    one = sum(part.numel() * part.element_size() for part in tensors_of(cache.get(attached.layers, range(3), 0)))
    monkeypatch.setattr("abnn.bayes.noise.ROOM", one * (ALWAYS + 2) + 1)
    parts = [range(first, first + 3) for first in range(0, 3 * (ALWAYS + 2), 3)]
    kept = [cache.get(attached.layers, part, 1) for part in parts]
    assert all(cache.get(attached.layers, part, 1) is noise for part, noise in zip(parts, kept))
    monkeypatch.setattr("abnn.bayes.noise.ROOM", 0)
    cache.get(attached.layers, range(3), 2)
    assert len(cache) == ALWAYS


def test_mean_weights_have_no_noise(attached: Attached) -> None:
    cache = NoiseCache()
    noise = cache.none(attached.layers, 3)
    assert same(noise, no_noise(attached.layers, 3)) and not any(part.any() for part in tensors_of(noise))
    assert {part.shape[1] for part in tensors_of(noise)} == {3}
    assert cache.none(attached.layers, 3) is noise and cache.none(attached.layers, 2) is not noise
    assert not same(cache.get(attached.layers, range(3), 0), noise)  # not taken for draws of a seed


def test_fresh_draws_are_not_remembered(attached: Attached) -> None:
    cache = NoiseCache()
    cache.get(attached.layers, range(3), 5, fresh=True)
    assert len(cache) == 0


def test_noise_follows_the_type_of_the_layers(attached: Attached) -> None:
    cache = NoiseCache()
    cache.get(attached.layers, range(2), 0)
    attached.double()
    assert all(part.dtype == torch.float64 for part in tensors_of(cache.get(attached.layers, range(2), 0)))


def test_copies_start_empty(attached: Attached) -> None:
    cache = NoiseCache()
    cache.get(attached.layers, range(2), 0)
    assert len(copy.deepcopy(cache)) == len(pickle.loads(pickle.dumps(cache))) == 0
