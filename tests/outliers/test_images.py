"""Outliers of images: "changed" ones can still be read, of "destroyed" ones nothing is left; every kind of both."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torch.utils.data import TensorDataset

from abnn.errors import InputError
from abnn.outliers import REGISTRY, Mixed, Outliers, make_outliers, measure_range
from abnn.outliers import changed as changed_file
from abnn.outliers.blobs import smooth_field
from abnn.outliers.changed import GROUPS, HARD, MILD, Changed, bearable, groups_of, tiles
from abnn.outliers.destroyed import KINDS
from abnn.outliers.leaves import MOST_PLACES, exact_scenes, leaf_scenes
from abnn.outliers.random import Rng
from abnn.outliers.style import of_neighbours, thicken_or_thin
from tests.conftest import generator
from tests.outliers.test_outliers import prepared

NAMES = ["changed", "destroyed", "tiers", "auto"]
SHAPES = [(16, 1, 8, 8), (16, 3, 32, 48), (1, 3, 40, 40), (2, 1, 3, 5), (1, 1, 1, 1), (5, 4, 64, 9)]


def photographs(*shape: int) -> Tensor:
    """Values in [0, 1] with large and small structure, as photographs have them."""
    rng = Rng(generator(11), torch.zeros(1))
    size = torch.Size(shape)
    return (0.8 * leaf_scenes(size, 12, rng) + 0.2 * rng.uniform(*shape)).clamp(0, 1)


def shifted(x: Tensor) -> Tensor:
    """Another range in every channel, as normalised images have it."""
    width = torch.arange(1.0, x.shape[1] + 1).view(1, -1, 1, 1)
    return (3 * x - 1) * width


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", NAMES)
def test_images_of_any_size_and_batches_of_one(name: str, shape: tuple[int, ...]) -> None:
    x, y = shifted(photographs(*shape)), torch.arange(shape[0])
    kept = x.clone()
    outliers = prepared(name, x)
    for seed in range(12):
        dtype = (torch.float32, torch.float64, torch.bfloat16)[seed % 3]
        batch = outliers(x.to(dtype), y, generator(seed))
        assert batch.x.shape == x.shape and batch.x.dtype == dtype and torch.isfinite(batch.x).all()
        assert batch.severity.shape == (len(x),) and batch.severity.dtype == torch.float32
        assert ((batch.severity >= 0) & (batch.severity <= 1)).all() and batch.y is y
        again = outliers(x.to(dtype), y, generator(seed))
        assert torch.equal(again.x, batch.x) and torch.equal(again.severity, batch.severity)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("name", NAMES)
def test_the_global_random_state_counts_only_without_a_generator(name: str) -> None:
    x, y = photographs(16, 3, 32, 32), torch.zeros(16)
    outliers = prepared(name, x)
    before = torch.get_rng_state()
    outliers(x, y, generator())
    assert torch.equal(torch.get_rng_state(), before)
    made = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        made.append(outliers(x, y).x)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (6, 3, 32, 48), (6, 3, 48, 48), (6, 1, 44, 60)])
@pytest.mark.parametrize("name", [*MILD, *HARD])
def test_every_kind_of_change_changes_every_image(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And keeps the value range, which the generator sees to, and the severities' upper end."""
    hard = name in HARD
    monkeypatch.setattr(changed_file, "HARD" if hard else "MILD", {name: (HARD if hard else MILD)[name]})
    monkeypatch.setattr(changed_file, "bearable", lambda x: 1.0)
    x = shifted(photographs(*shape))
    if name == "several changes":
        assert set(changed_file.MILD) == set(MILD)
    low, high = (bound.view(1, -1, 1, 1) for bound in measure_range([x]))
    outliers = prepared("changed", x, hard=float(hard), severity=(0.05, 0.1))
    for seed in range(3):
        batch = outliers(x, torch.zeros(6), generator(seed))
        slack = 1e-5 * (high - low)
        assert ((batch.x >= low - slack) & (batch.x <= high + slack)).all()
        changed = (batch.x != x).flatten(1).any(1)
        assert torch.equal(changed, batch.severity > 0)
        assert changed.float().mean() > 0.6, name  # a turn by next to nothing may leave some of the small ones
        if hard:
            assert torch.equal(batch.severity[changed], torch.full((int(changed.sum()),), 0.1))
        else:
            assert ((batch.severity[changed] >= 0.05) & (batch.severity[changed] <= 0.1)).all()


@pytest.mark.parametrize("shape", [(6, 1, 8, 8), (6, 3, 32, 48), (6, 3, 48, 48), (1, 1, 44, 60)])
@pytest.mark.parametrize("name", [*KINDS])
def test_every_kind_destroys_every_image(name: str, shape: tuple[int, ...]) -> None:
    x, rng = photographs(*shape), Rng(generator(3), torch.zeros(1))
    for _ in range(3):
        made = KINDS[name](x, rng)
        assert made.shape == x.shape and made.dtype == x.dtype and torch.isfinite(made).all()
        if name != "noise":
            assert (made >= -1e-6).all() and (made <= 1 + 1e-6).all()
        moved = (made - x).abs().flatten(1).mean(1)
        assert (moved > 0.01).all()


def test_half_of_the_noise_leaves_the_range() -> None:
    x, rng = photographs(4, 1, 16, 16), Rng(generator(3), torch.zeros(1))
    outside = sum(bool((KINDS["noise"](x, rng).abs() > 1.01).any()) for _ in range(200))
    assert outside == pytest.approx(200 * 0.85 / 2, abs=5 * 7)  # the deviation of 200 draws is 7


def test_groups_have_kinds_of_their_own_and_two_images(monkeypatch: pytest.MonkeyPatch) -> None:
    for count in range(1, 70):
        sizes = [len(part) for part in groups_of(torch.zeros(count))]
        assert sum(sizes) == count and len(sizes) <= GROUPS and max(sizes) - min(sizes) <= 1
        assert min(sizes) >= 2 or count == 1
    levels = {str(number): (lambda x, _, number=number: torch.full_like(x, number / 10)) for number in range(11)}
    monkeypatch.setattr("abnn.outliers.destroyed.KINDS", levels)
    x = photographs(2 * GROUPS, 1, 32, 32)
    outliers, first = make_outliers("destroyed"), set()
    outliers.prepare(0.0, 1.0)
    for seed in range(40):
        found = (10 * outliers(x, torch.zeros(16), generator(seed)).x.mean((1, 2, 3))).round().int()
        assert torch.equal(found[::2], found[1::2])
        assert torch.equal(found[::2], (found[0] + torch.arange(GROUPS)) % 11)  # one kind after the other
        first.add(int(found[0]))
    assert len(first) > 5


def test_what_needs_other_images_leaves_a_single_one_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_file, "HARD", {"spectrum of another": HARD["spectrum of another"]})
    x = photographs(2, 3, 48, 48)
    outliers = prepared("changed", x, hard=1.0)
    pair, single = (outliers(each, torch.zeros(len(each)), generator()) for each in (x, x[:1]))
    assert (pair.severity > 0).all() and ((pair.x - x).abs().flatten(1).mean(1) > 0.01).all()
    assert torch.equal(single.x, x[:1]) and float(single.severity) == 0


def test_severity_zero_leaves_single_images_as_they_are() -> None:
    x, y = shifted(photographs(16, 3, 48, 48)), torch.zeros(16)
    given = torch.full((16,), 0.1)
    given[::3] = 0
    for name in NAMES:
        for seed in range(5):
            batch = prepared(name, x)(x, y, generator(seed), severity=given)
            assert torch.equal(batch.x[::3], x[::3]) and (batch.severity[::3] == 0).all(), name


@pytest.mark.parametrize(("side", "least", "most"), [(28, 1.0, 1.0), (64, 0.2, 0.8)])
def test_large_images_out_of_focus_have_noise_in_one_half_of_the_draws(side: int, least: float, most: float) -> None:
    """Else a photograph that is merely blurred would look like nothing that was practised."""
    grey = torch.full((2, 3, side, side), 0.5)
    noisy = [bool(HARD["very soft"](grey, 1.0, Rng(generator(seed), grey)).std() > 0.01) for seed in range(40)]
    assert least <= sum(noisy) / len(noisy) <= most


def test_changed_images_count_as_the_upper_end_at_most_and_destroyed_ones_as_told() -> None:
    x, y = photographs(32, 1, 48, 48), torch.zeros(32)
    own = prepared("changed", x)(x, y, generator()).severity
    assert ((own == 0) | (own >= 0.015)).all() and own.max() <= 0.1 + 1e-6
    told = prepared("changed", x)(x, y, generator(), severity=1.0).severity
    assert told.max() <= 0.1 + 1e-6 and (told > 0).any()
    destroyed = prepared("destroyed", x)
    whole, half = (destroyed(x, y, generator(), severity=s) for s in (None, 0.5))
    assert torch.equal(whole.severity, torch.ones(32)) and torch.equal(half.severity, torch.full((32,), 0.5))
    torch.testing.assert_close(half.x, (x + whole.x) / 2)


def test_mild_changes_grow_with_their_severity() -> None:
    x, y = photographs(64, 3, 32, 32), torch.zeros(64)
    outliers = prepared("changed", x, hard=0.0)
    moved = []
    for severity in (0.0, 0.02, 0.05, 0.1):
        made = [outliers(x, y, generator(seed), severity=severity).x for seed in range(4)]
        moved.append(float(torch.stack([(each - x).abs().mean() for each in made]).mean()))
    assert moved[0] == 0 and moved == sorted(moved)


def test_small_images_get_fewer_hard_changes() -> None:
    sides = [4, 8, 16, 24, 40, 224]
    assert [bearable(torch.zeros(1, 1, side, 300)) for side in sides] == [0, 0, 0.25, 0.5, 1, 1]
    x, y = photographs(32, 1, 8, 8), torch.zeros(32)
    made = [prepared("changed", x, hard=1.0)(x, y, generator(seed), severity=0.05).severity for seed in range(5)]
    assert all((each <= 0.05 + 1e-6).all() for each in made)  # hard ones would be 0.1


def test_tiers_are_halves() -> None:
    x, y = photographs(64, 1, 32, 32), torch.zeros(64)
    severity = prepared("tiers", x)(x, y, generator()).severity
    assert int((severity == 1).sum()) == 32 and int((severity <= 0.1 + 1e-6).sum()) == 32
    told = prepared("tiers", x)(x, y, generator(), severity=0.5).severity
    assert int((told == 0.5).sum()) == 32 and int((told <= 0.1 + 1e-6).sum()) == 32


def test_a_reader_reads_changed_digits_and_no_destroyed_ones() -> None:
    """By the nearest class mean, of digits that were made larger."""
    data = load_digits()
    x = F.interpolate(torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, size=24, mode="bilinear")
    y = torch.tensor(data.target)
    means = torch.stack([x[y == digit].mean(0).flatten() for digit in range(10)])

    def accuracy(name: str, **options: object) -> float:
        made = prepared(name, x, **options)
        right = [
            torch.cdist(made(part, own, generator(seed)).x.flatten(1), means).argmin(1) == own
            for seed, (part, own) in enumerate(zip(x.split(64), y.split(64)))
        ]
        return float(torch.cat(right).float().mean())

    plain = float((torch.cdist(x.flatten(1), means).argmin(1) == y).float().mean())
    mild, hard, destroyed = accuracy("changed", hard=0.0), accuracy("changed", hard=1.0), accuracy("destroyed")
    assert plain > 0.85 and mild > 0.6 and mild > hard > destroyed and destroyed < 0.25


@pytest.mark.parametrize("name", ["changed", "destroyed", "tiers", "auto"])
def test_configs_give_the_same_generator(name: str) -> None:
    x, y = shifted(photographs(16, 2, 24, 24)), torch.zeros(16)
    options: dict[str, object] = {"hard": 0.25, "severity": (0.0, 0.2)} if name == "changed" else {}
    outliers = prepared(name, x, **options)
    config = json.loads(json.dumps(outliers.to_config(), allow_nan=False))
    again = Outliers.from_config(config)
    assert again.to_config() == outliers.to_config() == config and type(again) is REGISTRY[name]
    a, b = outliers(x, y, generator()), again(x, y, generator())
    assert torch.equal(a.x, b.x) and torch.equal(a.severity, b.severity)
    if name == "tiers":
        own = Outliers.from_config({**config, "parts": [{"name": "changed", "hard": 0.25}, "destroyed"]})
        assert isinstance(own, Mixed) and isinstance(own.parts[0], Changed) and own.parts[0].hard == 0.25


def test_wrong_options_and_forms() -> None:
    with pytest.raises(InputError, match="hard: got 2; accepted: a number from 0 to 1"):
        make_outliers("changed", hard=2)
    with pytest.raises(InputError, match="severity"):
        make_outliers("tiers", severity=0.5)
    for name in ("changed", "destroyed", "tiers"):
        with pytest.raises(InputError, match=r"outliers '.*accepted: \[B, C, H, W\].*'auto'"):
            make_outliers(name)(torch.zeros(4, 3, 10), torch.zeros(4))


def test_what_a_graph_can_make() -> None:
    """Kinds that the host chooses cannot be captured, nor what holds one of them or reads items of a data set."""
    hosts = {"changed", "destroyed", "tiers", "auto", "changed-words", "destroyed-words", "sentences"}
    kinds = set(REGISTRY) - {"dataset"}
    assert {name for name in kinds if not make_outliers(name).capturable} == hosts
    assert not make_outliers("mixed", parts=["noise", "changed"]).capturable
    data = torch.zeros(4, 1, 8, 8)
    assert make_outliers(data).capturable and make_outliers(TensorDataset(data)).capturable

    class Items(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, place: int) -> Tensor:
            return data[place]

    own = make_outliers(Items())
    assert not own.capturable and not make_outliers("mixed", parts=["noise", own]).capturable


def test_large_scenes_are_resized_ones() -> None:
    size = torch.Size((2, 3, 2 * MOST_PLACES, 80))
    rngs = [Rng(generator(), torch.zeros(1)) for _ in range(2)]
    made = leaf_scenes(size, 8, rngs[0])
    small = exact_scenes(torch.Size((2, 3, MOST_PLACES, 80)), 8, rngs[1])
    assert made.shape == size and (made >= 0).all() and (made <= 1).all()
    torch.testing.assert_close(F.avg_pool2d(made, (2, 1)), small, rtol=0, atol=0.5)
    assert (F.avg_pool2d(made, (2, 1)) - small).abs().mean() < 0.01  # only edges differ
    fitting = torch.Size((2, 3, MOST_PLACES, 80))
    first, second = (
        function(fitting, 8, Rng(generator(1), torch.zeros(1))) for function in (leaf_scenes, exact_scenes)
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("shape", [(2, 2, 9), (2, 1, 7, 5), (2, 1, 4, 5, 3), (2, 1, 1, 6), (2, 3, 2, 1)])
def test_neighbours_are_those_of_a_pool(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=generator())
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[x.ndim - 3]
    assert torch.equal(of_neighbours(x, torch.maximum), pool(x, 3, stride=1, padding=1))
    assert torch.equal(of_neighbours(x, torch.minimum), -pool(-x, 3, stride=1, padding=1))
    amount = torch.ones(2, *[1] * (x.ndim - 1))
    made = thicken_or_thin(x, amount, Rng(generator(), x))
    assert made.shape == x.shape and (made <= of_neighbours(x, torch.maximum) + 1e-6).all()


def test_quantiles_of_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch refuses to sort more than 2^24 values; some of them are enough."""
    x = smooth_field(torch.Size((4, 3, 64, 64)), 5, Rng(generator(), torch.zeros(1)))
    made = []
    for most in (2**23, 2**10):
        monkeypatch.setattr(changed_file, "SORTED", most)
        made.append(HARD["two colours"](x, 1.0, Rng(generator(2), x)))
    assert not torch.equal(made[0], made[1]) and (made[0] - made[1]).abs().mean() < 0.05


def test_tiles_repeat_one_part_and_its_mirror_image() -> None:
    x = photographs(2, 1, 24, 40)
    made = tiles(x, Rng(generator(), x))
    periods = [(down, across) for down in range(2, 24) for across in range(2, 40)
               if torch.equal(made[:, :, down:], made[:, :, :-down]) and torch.equal(made[..., across:], made[..., :-across])]  # fmt: skip
    assert periods and not torch.equal(made, x)
    down, across = periods[0]
    assert torch.equal(made[:, :, :down], made[:, :, :down].flip(2))
    assert torch.equal(made[..., :across], made[..., :across].flip(3))
