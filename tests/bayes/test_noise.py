"""Noise that is kept between predictions: the same as resample() gives, always in the same place, never shared by copies."""

from __future__ import annotations

import copy
import pickle

import torch
from torch import Tensor

from abnn.bayes import noise as draws
from abnn.bayes.noise import KeptDraws, Noise, changed, hold_noise, some_of
from abnn.model.attached import Attached


def same(left: Noise, right: Noise) -> bool:
    return all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for one, other in zip(left, right)
        for a, b in zip(one, other)
    )


def places(noise: Noise) -> list[int]:
    return [part.data_ptr() for pair in noise for part in pair if part is not None]


def test_kept_noise_is_that_of_resample(attached: Attached) -> None:
    kept = KeptDraws()
    for wanted, seed in ((range(4), 0), (range(2, 9), 0), (range(4), 5), (range(1), 5)):
        attached.resample(wanted, seed=seed)
        assert same(kept.get(attached.layers, wanted, seed), hold_noise(attached.layers))


def test_other_draws_come_to_the_same_place(attached: Attached) -> None:
    kept = KeptDraws()
    first = kept.get(attached.layers, range(3), 0)
    before, values = places(first), changed(first, Tensor.clone)
    second = kept.get(attached.layers, range(3), 1)
    assert second is first and places(second) == before and not same(second, values)
    assert kept.get(attached.layers, range(3, 6), 0) is first
    assert same(kept.get(attached.layers, range(3), 0), values)


def test_noise_is_made_only_when_it_changes(attached: Attached, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    made = []
    plain = draws.make
    monkeypatch.setattr(draws, "make", lambda *args: (made.append(args[2]), plain(*args)))
    kept = KeptDraws()
    for seed in (0, 0, 1, 1, 0):
        kept.get(attached.layers, range(3), seed)
    assert len(made) == 3
    kept.get(attached.layers, range(5), 0)
    kept.get(attached.layers, range(3), 0)  # another number of draws has a place of its own
    assert len(made) == 4
    kept.get(attached.layers, range(5), 0, mean=True)  # and so has one with mean weights ahead
    kept.get(attached.layers, range(5), 0)
    assert len(made) == 5
    for number in (6, 7, 8, 9, 5):  # but only some are kept
        kept.get(attached.layers, range(number), 0)
    assert len(made) == 10


def test_mean_weights_go_ahead(attached: Attached) -> None:
    kept = KeptDraws()
    attached.resample(3, seed=2)
    for seed in (0, 2):
        found = kept.get(attached.layers, range(3), seed, mean=True)
    assert all(part is None or not part[:, 0].any() for pair in found for part in pair)
    assert same(some_of(found, slice(1, None)), hold_noise(attached.layers))


def test_noise_follows_the_model(attached: Attached) -> None:
    kept = KeptDraws()
    single = kept.get(attached.layers, range(2), 0)
    attached.double()
    double = kept.get(attached.layers, range(2), 0)
    assert double is not single and double[0][0] is not None and double[0][0].dtype == torch.float64
    assert same(double, [tuple(None if n is None else n.double() for n in pair) for pair in single])


def test_noise_can_be_trained_with(attached: Attached) -> None:
    with torch.inference_mode():
        noise = KeptDraws().get(attached.layers, range(2), 0)
    assert not any(part.is_inference() for pair in noise for part in pair if part is not None)


def test_copies_keep_nothing(attached: Attached, images: Tensor) -> None:
    first = attached.predict(images, draws=3)
    other = copy.deepcopy(attached)
    assert other.kept_draws is not attached.kept_draws and not other.kept_draws._places
    assert torch.equal(other.predict(images, draws=3).samples, first.samples)
    before = places(attached.kept_draws.get(attached.layers, range(3), 0))
    assert not set(before) & set(places(other.kept_draws.get(other.layers, range(3), 0)))
    assert not pickle.loads(pickle.dumps(attached.kept_draws))._places
    assert "noise" not in " ".join(attached.state_dict())


def test_the_host_keeps_so_many_bytes(attached: Attached, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    kept, layers = KeptDraws(), attached.layers
    one = draws.size(kept._made(layers, range(2), 0))
    assert one == 2 * attached.noise_bytes
    monkeypatch.setattr(draws, "HOST_BYTES", 3 * one)
    made = [kept._made(layers, range(2), seed) for seed in range(3)]
    assert kept._made(layers, range(2), 0) is made[0]  # used last
    kept._made(layers, range(2), 7)
    assert kept._made(layers, range(2), 0) is made[0] and kept._made(layers, range(2), 1) is not made[1]
    assert sum(map(draws.size, kept._host.values())) <= 3 * one
