from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from abnn.errors import InputError, NotFittedError
from abnn.outliers import DEFAULT, REGISTRY, Noise, Outliers, make_outliers, measure_range
from abnn.outliers.patches import shuffle_patches
from abnn.outliers.random import Rng
from abnn.outliers.style import border_level, object_mask, small_affine
from tests.conftest import generator

SPATIAL = ["noise", "patches", "invert", "blobs", "backgrounds", "style", "mixed", "graded", "two-tier", "auto"]
IMAGES = ["leaves", "changed", "destroyed", "tiers"]
FLAT = ["noise", "invert", "feature-noise", "feature-shuffle", "tabular", "auto"]
TOKENS = ["tokens", "changed-words", "destroyed-words", "sentences", "auto"]
SHAPES = [(12, 2, 40), (12, 1, 8, 8), (12, 3, 17, 28), (12, 1, 9, 10, 11)]


def inputs(shape: tuple[int, ...]) -> Tensor:
    """Normalised-looking values: negative ones too, and another range in every channel."""
    width = torch.arange(1, shape[1] + 1).view(1, -1, *[1] * (len(shape) - 2))
    return (torch.rand(shape, generator=generator(9)) * 3 - 1) * width


def prepared(name: str, x: Tensor, **options: object) -> Outliers:
    outliers = make_outliers(name, **options)
    outliers.prepare(*measure_range([x]))
    return outliers


CASES = (
    [(n, s) for n in SPATIAL for s in SHAPES]
    + [(n, s) for n in IMAGES for s in SHAPES if len(s) == 4]
    + [(n, (12, 5)) for n in FLAT]
)


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32)[:, None] / 16, torch.tensor(data.target)


def test_every_name_is_covered() -> None:
    assert set(SPATIAL) | set(IMAGES) | set(FLAT) | set(TOKENS) | {"dataset"} == set(REGISTRY)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_batch_has_the_form_of_its_inputs(name: str, shape: tuple[int, ...]) -> None:
    x = inputs(shape)
    y = torch.arange(len(x)) % 3
    outliers = prepared(name, x)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        batch = outliers(x.to(dtype), y, generator())
        assert batch.x.shape == x.shape and batch.x.dtype == dtype and torch.isfinite(batch.x).all()
        assert batch.severity.shape == (len(x),) and batch.severity.dtype == torch.float32
        assert ((batch.severity >= 0) & (batch.severity <= 1)).all()
        assert batch.y is y


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_same_generator_state_gives_same_outliers_and_only_the_generator_counts(
    name: str, shape: tuple[int, ...]
) -> None:
    x, y = inputs(shape), torch.zeros(shape[0], dtype=torch.long)
    outliers = prepared(name, x)
    first_generator, second_generator = generator(3), generator(3)
    first = outliers(x, y, first_generator)
    torch.manual_seed(77)
    before = torch.get_rng_state()
    second = outliers(x, y, second_generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.x, second.x) and torch.equal(first.severity, second.severity)
    assert torch.equal(first_generator.get_state(), second_generator.get_state())
    if name != "invert":
        third = outliers(x, y, generator(4))
        assert not torch.equal(first.x, third.x)
    torch.manual_seed(5)
    by_global_state = outliers(x, y)
    torch.manual_seed(5)
    assert torch.equal(by_global_state.x, outliers(x, y).x)


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_severity_zero_changes_nothing_and_input_stays_untouched(name: str, shape: tuple[int, ...]) -> None:
    x, y = inputs(shape), torch.zeros(shape[0], dtype=torch.long)
    copy = x.clone()
    outliers = prepared(name, x)
    assert torch.equal(outliers(x, y, generator(), severity=0.0).x, copy)
    outliers(x, y, generator(), severity=1.0)
    assert torch.equal(x, copy)


@pytest.mark.parametrize(
    "name", ["noise", "patches", "invert", "blobs", "backgrounds", "leaves", "style", "graded", "two-tier"]
)
def test_distance_from_the_input_grows_with_severity(name: str, digits: tuple[Tensor, Tensor]) -> None:
    x, y = digits
    outliers = prepared(name, x)
    most = 0.3 if name == "style" else 1.0
    distances = []
    for severity in torch.linspace(0.0, most, 5).tolist():
        batch = outliers(x, y, generator(1), severity=severity)
        distances.append(float((batch.x - x).flatten(1).norm(dim=1).mean()))
        assert float(batch.severity.max()) == pytest.approx(severity, abs=1e-6)
    assert distances[0] == 0 and all(b > a for a, b in itertools.pairwise(distances)), distances


@pytest.mark.parametrize("name", ["feature-noise", "feature-shuffle", "tabular"])
def test_distance_of_flat_inputs_grows_with_severity(name: str) -> None:
    x = torch.randn(256, 10, generator=generator(2))
    outliers = prepared(name, x)
    distances = [
        float((outliers(x, x[:, 0], generator(1), severity=t).x - x).norm(dim=1).mean()) for t in (0, 0.25, 0.5, 1)
    ]
    assert distances == sorted(distances) and distances[0] == 0 < distances[1]


@pytest.mark.parametrize("name", ["blobs", "backgrounds", "leaves"])
def test_what_is_blended_in_may_count_by_a_power_of_its_share(name: str) -> None:
    x, y = inputs((16, 1, 8, 8)), torch.zeros(16, dtype=torch.long)
    dial = torch.linspace(0, 1, 16)
    straight, fading = (prepared(name, x, fade=fade)(x, y, generator(), dial) for fade in (1, 4))
    assert torch.equal(straight.x, fading.x)
    assert torch.equal(straight.severity, dial)
    assert torch.allclose(fading.severity, dial**4)
    assert "fade" not in make_outliers(name).to_config()  # as before there was a choice
    assert make_outliers(name, fade=4).to_config()["fade"] == 4
    with pytest.raises(InputError, match="fade: got 0"):
        make_outliers(name, fade=0)


def test_one_seed_shows_the_same_outliers_by_degrees() -> None:
    """Blends are linear in the severity when the numbers behind them are the same."""
    x = inputs((12, 1, 8, 8))
    for name in ("noise", "invert", "blobs", "backgrounds"):
        outliers = prepared(name, x)
        half, whole = (outliers(x, x[:, 0], generator(), severity=t).x for t in (0.5, 1.0))
        assert torch.allclose(half, (x + whole) / 2, atol=1e-5), name
        drawn, fixed = generator(), generator()
        outliers(x, x[:, 0], drawn), outliers(x, x[:, 0], fixed, severity=0.5)
        assert torch.equal(drawn.get_state(), fixed.get_state())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["patches", "invert", "blobs", "backgrounds", "style"])
def test_values_stay_in_the_range_of_each_channel(name: str, shape: tuple[int, ...]) -> None:
    x = inputs(shape)
    low, high = measure_range([x])
    made = prepared(name, x)(x, x[:, 0], generator()).x
    made_low, made_high = measure_range([made])
    slack = 1e-5 * (high - low)  # a few roundings of float32 through the unit range
    assert (made_low >= low - slack).all() and (made_high <= high + slack).all()


def test_clipped_noise_stays_in_range_and_plain_noise_leaves_it() -> None:
    x = inputs((12, 3, 17, 28))
    low, high = measure_range([x])
    clipped = measure_range([prepared("noise", x, clip=True)(x, x[:, 0], generator()).x])
    plain = measure_range([prepared("noise", x)(x, x[:, 0], generator()).x])
    slack = 1e-6 * (high - low)
    assert (clipped[0] >= low - slack).all() and (clipped[1] <= high + slack).all()
    assert (plain[0] < low).all() and (plain[1] > high).all()


def test_noise_is_x_plus_severity_times_scale_times_normal_in_both_units() -> None:
    x = inputs((64, 3, 16, 16))
    y = torch.zeros(64)
    raw = make_outliers("noise", scale=16.0, units="raw", severity=1.0)
    assert not raw.needs_range
    batch = raw(x, y, generator())
    assert torch.equal(batch.severity, torch.ones(64))
    # 49,152 draws: the sample deviation lies within 1.5 % (4.7 standard errors of 1/sqrt(2n)).
    assert float((batch.x - x).std()) == pytest.approx(16.0, rel=0.015)
    low, high = measure_range([x])
    by_range = prepared("noise", x, scale=0.5)(x, y, generator(), severity=0.5).x - x
    expected = 0.25 * (high - low)
    assert torch.allclose(by_range.transpose(0, 1).flatten(1).std(dim=1), expected, rtol=0.03)


def test_shared_channels_add_one_noise_map() -> None:
    x = inputs((8, 3, 8, 8))
    noise = make_outliers("noise", units="raw", shared_channels=True)(x, x[:, 0], generator(), severity=1.0).x - x
    assert torch.allclose(noise[:, 0], noise[:, 2], atol=1e-5)  # up to rounding of x + n - x


def test_patches_keep_the_values_of_every_sample_and_channel() -> None:
    for shape in SHAPES:
        x = inputs(shape)
        made = make_outliers("patches")(x, x[:, 0], generator(), severity=1.0).x
        assert torch.equal(made.flatten(2).sort(dim=2).values, x.flatten(2).sort(dim=2).values)
        # Channels move together: the place of every value of channel 0 moved as that of the last channel.
        if shape[1] > 1:
            where = torch.arange(x[0, 0].numel()).float().view(1, 1, *shape[2:]).expand(shape)
            moved = make_outliers("patches")(where, x[:, 0], generator(), severity=1.0).x
            assert torch.equal(moved[:, 0], moved[:, -1])


def test_patches_against_a_loop_over_samples_and_patches() -> None:
    size = (7, 12)
    x = torch.arange(6 * 2 * 7 * 12).float().view(6, 2, *size)
    pieces, share = torch.tensor([2, 4, 8, 2, 4, 8]), torch.tensor([1.0, 1.0, 1.0, 0.5, 0.5, 0.1])
    made = shuffle_patches(x, pieces, share, 8, Rng(generator(), x))
    for b, n in enumerate(pieces.tolist()):
        counts = [min(n, length) for length in size]
        edges = [length // count for length, count in zip(size, counts, strict=True)]
        margins = [(length - c * e) // 2 for length, c, e in zip(size, counts, edges, strict=True)]
        cut = [
            (slice(margins[0] + i * edges[0], margins[0] + (i + 1) * edges[0]),
             slice(margins[1] + j * edges[1], margins[1] + (j + 1) * edges[1]))
            for i in range(counts[0]) for j in range(counts[1])
        ]  # fmt: skip
        rest = torch.ones(size, dtype=torch.bool)
        moved = 0
        for rows, columns in cut:
            patch = made[b][:, rows, columns]
            sources = [k for k, (r, c) in enumerate(cut) if torch.equal(x[b][:, r, c], patch)]
            assert len(sources) == 1
            moved += cut[sources[0]] != (rows, columns)
            rest[rows, columns] = False
        assert torch.equal(made[b][:, rest], x[b][:, rest])
        expected = int(np.ceil(np.float32(float(share[b]) * len(cut))))
        assert moved == (expected if expected > 1 else 0)


def test_mask_and_background_do_not_depend_on_polarity(digits: tuple[Tensor, Tensor]) -> None:
    x = digits[0][:50]
    background = border_level(x)
    mask = object_mask(x, background)
    assert torch.allclose(border_level(1 - x), 1 - background)
    assert torch.allclose(object_mask(1 - x, 1 - background), mask, atol=1e-6)
    assert torch.equal(object_mask(torch.ones(2, 1, 8, 8), torch.ones(2, 1, 1, 1)), torch.zeros(2, 1, 8, 8))


def test_style_keeps_labels_readable_and_content_outliers_do_not(digits: tuple[Tensor, Tensor]) -> None:
    """A reader that has seen styled training digits reads styled test digits, but gains nothing on destroyed content."""
    x, y = digits
    train, test = slice(0, 1200), slice(1200, None)
    style = prepared("style", x, flip=0.0)
    copies = [style(x[train], y[train], generator(s)).x for s in range(3)]
    reader = LogisticRegression(max_iter=200).fit(
        torch.cat([x[train], *copies]).flatten(1).numpy(), y[train].repeat(4).numpy()
    )

    def accuracy(name: str, **options: object) -> float:
        made = prepared(name, x, **options)(x[test], y[test], generator(50), severity=1.0).x
        return float(reader.score(made.flatten(1).numpy(), y[test].numpy()))

    clean = float(reader.score(x[test].flatten(1).numpy(), y[test].numpy()))
    assert clean > 0.9
    assert accuracy("style", flip=0.0) > clean - 0.15
    for name in ("noise", "patches", "blobs", "backgrounds"):
        assert accuracy(name) < 0.25, name


def test_style_changes_the_size_of_things_as_far_as_it_is_told() -> None:
    x = torch.zeros(400, 1, 28, 28)
    x[..., 10:18, 10:18] = 1.0
    amount, areas = torch.ones(400, 1, 1, 1), []
    for size in (0.0, 0.3, 0.6):
        made = small_affine(x, amount, Rng(generator(), x), size)
        areas.append(made.sum((1, 2, 3)) / 64)
        assert areas[-1].max() < 1.25 * math.exp(2 * size) and areas[-1].min() > 0.75 * math.exp(-2 * size)
    assert areas[0].std() < areas[1].std() < areas[2].std()


def test_style_recomposes_with_readable_contrast_of_the_same_sign() -> None:
    x = torch.zeros(200, 1, 16, 16)
    x[..., 5:11, 6:10] = 1.0
    for image, sign in ((x, 1.0), (1 - x, -1.0)):
        made = prepared("style", x, flip=0.0, composite=1.0)(image, x[:, 0], generator(), severity=0.3).x
        contrast = sign * (made[..., 7:9, 7:9].mean((1, 2, 3)) - border_level(made).flatten())
        assert (contrast > 0.1).all()
        assert made[..., 0, :].std() > 0.05  # backgrounds really differ
    flipped = prepared("style", x, flip=1.0, composite=0.0)(x, x[:, 0], generator(), severity=0.3).x
    assert (flipped[..., 7:9, 7:9].mean((1, 2, 3)) < border_level(flipped).flatten()).all()


def test_two_tiers_draw_their_own_severities() -> None:
    x = inputs((400, 1, 8, 8))
    severity = prepared("two-tier", x)(x, x[:, 0], generator()).severity
    # 200 of 400 are at most 0.3 by construction; of the others U(0, 1) gives 30 %: 260, deviation sqrt(200*.3*.7) = 6.5.
    assert int((severity <= 0.3).sum()) == pytest.approx(260, abs=5 * 6.5)
    own = prepared("two-tier", x, style_severity=(0.1, 0.2), content_severity=1.0, content=["noise"])
    severity = own(x, x[:, 0], generator()).severity
    assert int((severity == 1).sum()) == 200
    assert int(((severity >= 0.1) & (severity <= 0.2)).sum()) == 200
    fixed = own(x, x[:, 0], generator(), severity=0.6).severity
    assert int((fixed == 0.6).sum()) == 200 and int((fixed == 0.2).sum()) == 200


def test_mixtures_deal_equal_shares_and_reach_every_part_even_for_one_sample() -> None:
    parts = [Noise(units="raw", scale=1e-6), Noise(units="raw", scale=1e6)]
    mixed = make_outliers("mixed", parts=parts)
    assert not mixed.needs_range
    x = torch.zeros(101, 1, 4, 4)
    far = mixed(x, x[:, 0], generator()).x.abs().amax((1, 2, 3)) > 1
    assert int(far.sum()) in (50, 51)
    single = [bool((mixed(x[:1], x[:1, 0], generator(s)).x.abs() > 1).any()) for s in range(40)]
    assert 5 < sum(single) < 35
    # A sample's own content goes into its own outlier.
    x = torch.arange(101.0).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    quiet = make_outliers("mixed", parts=[Noise(units="raw", scale=1e-3)] * 3)(x, x[:, 0], generator()).x
    assert torch.equal(quiet.mean((1, 2, 3)).round(), torch.arange(101.0))


def test_mixed_is_severity_one_and_graded_covers_the_dial() -> None:
    x = inputs((300, 1, 8, 8))
    assert torch.equal(prepared("mixed", x)(x, x[:, 0], generator()).severity, torch.ones(300))
    severity = prepared("graded", x)(x, x[:, 0], generator()).severity.sort().values
    # Kolmogorov's bound: the empirical distribution of 300 draws deviates by less than 1.63/sqrt(300) = 0.094 (99 %).
    assert (severity - (torch.arange(300) + 0.5) / 300).abs().max() < 0.094


def test_feature_shuffle_moves_the_share_and_keeps_each_features_values() -> None:
    x = torch.randn(64, 10, generator=generator(1))
    shuffle = make_outliers("feature-shuffle")
    full = shuffle(x, x[:, 0], generator(), severity=1.0).x
    assert torch.equal(full.sort(dim=0).values, x.sort(dim=0).values)
    assert (full != x).all()
    part = shuffle(x, x[:, 0], generator(), severity=0.3).x
    assert torch.equal((part != x).sum(dim=1), torch.full((64,), 3))
    alone = shuffle(x[:1], x[:1, 0], generator(), severity=1.0)
    assert torch.equal(alone.x, x[:1]) and float(alone.severity) == 0


def test_what_was_exchanged_with_a_copy_of_itself_is_no_outlier() -> None:
    x, y = inputs((3, 5)), torch.zeros(3, dtype=torch.long)  # two parts of two places each: one sample is there twice
    outliers = prepared("tabular", x, severity=(0.5, 1.0))
    same = 0
    for seed in range(60):
        batch = outliers(x, y, generator(seed))
        unchanged = (batch.x == x).all(1)
        assert (batch.severity[unchanged] == 0).all() and (batch.severity[~unchanged] > 0).all()
        same += int(unchanged.sum())
    assert same > 0


def test_auto_follows_the_shape() -> None:
    flat, image = inputs((32, 5)), inputs((32, 1, 8, 8))
    signal, volume = inputs((32, 2, 40)), inputs((32, 1, 9, 10, 11))
    for x, name in ((flat, "tabular"), (signal, "two-tier"), (image, "tiers"), (volume, "two-tier")):
        a, b = prepared("auto", x)(x, x[:, 0], generator()), prepared(name, x)(x, x[:, 0], generator())
        assert torch.equal(a.x, b.x) and torch.equal(a.severity, b.severity)
    assert make_outliers().name == DEFAULT == "auto"


def words(batch: int = 12, length: int = 10) -> Tensor:
    """A different token at every place."""
    return torch.arange(batch * length).view(batch, length)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_tokens_are_exchanged_by_their_share_with_those_of_other_samples(dtype: torch.dtype) -> None:
    x, y = words().to(dtype), torch.arange(12) % 3
    outliers = make_outliers("tokens")
    for severity, changed in ((0.0, 0), (0.3, 3), (0.5, 5), (1.0, 10)):
        batch = outliers(x, y, generator(), severity=severity)
        assert batch.x.dtype == dtype and batch.x.shape == x.shape and batch.y is y
        assert torch.equal(batch.severity, torch.full((12,), severity))
        assert torch.equal((batch.x != x).sum(1), torch.full((12,), changed))
        rows = torch.where(batch.x != x, batch.x // 10, -1)
        assert not (rows == torch.arange(12)[:, None]).any() and int(rows.max()) < 12
    assert torch.equal(x, words().to(dtype))


def test_tokens_follow_the_generator_alone() -> None:
    x, y = words(), torch.zeros(12)
    for name in TOKENS:
        outliers, first, second = make_outliers(name), generator(3), generator(3)
        a, b, c = outliers(x, y, first), outliers(x, y, second, severity=None), outliers(x, y, generator(4))
        assert torch.equal(a.x, b.x) and torch.equal(a.severity, b.severity) and not torch.equal(a.x, c.x)
        assert torch.equal(first.get_state(), second.get_state())
        # Other tokens of the same shape, and a given severity, draw as many numbers.
        outliers(x % 2, y, first), outliers(x, y, second, severity=0.5)
        assert torch.equal(first.get_state(), second.get_state())


def test_tokens_come_from_everywhere_and_kept_ones_stay() -> None:
    x = words(40, 10) + 1
    x[::2, 6:] = 0
    x[1] = 0
    made = make_outliers("tokens", keep=[0])(x, x[:, 0], generator(), severity=1.0).x
    assert torch.equal(made == 0, x == 0) and torch.equal(made[1], x[1])
    assert (made[0, :6] != x[0, :6]).all()
    short = make_outliers("tokens", keep=(0,))(x, x[:, 0], generator(), severity=0.5).x
    assert torch.equal((short != x).sum(1)[::2], torch.full((20,), 3))  # half of the six that are no padding
    drawn = torch.cat(
        [make_outliers("tokens")(words(4, 5), x[:4], generator(s), severity=1.0).x[0] for s in range(200)]
    )
    counts = torch.bincount(drawn, minlength=20)
    # 1000 draws over the 15 places of the three others: 66.7 each, deviation 7.9.
    assert (counts[:5] == 0).all() and (counts[5:] - 1000 / 15).abs().max() < 5 * 7.9


def test_a_token_sequence_alone_in_its_batch_is_no_outlier() -> None:
    batch = make_outliers("tokens")(words(1), torch.zeros(1), generator(), severity=1.0)
    assert torch.equal(batch.x, words(1)) and float(batch.severity) == 0


def test_real_tokens_replace_whole_samples() -> None:
    x, data = words(8, 4), torch.full((5, 4), 1000)
    given = torch.tensor([0.0, 0.3, 0.5, 1.0] * 2)
    for own in (data, TensorDataset(data)):
        batch = make_outliers(own)(x, x[:, 0], generator(), severity=given)
        assert torch.equal(batch.x, torch.where(given[:, None] > 0, 1000, x)) and batch.x.dtype == x.dtype
        assert torch.equal(batch.severity, (given > 0).float())
    with pytest.raises(InputError, match="tokens of torch.int64"):
        make_outliers(data.float())(x, x[:, 0])


def test_whole_numbers_have_one_range_whatever_their_length() -> None:
    low, high = measure_range([words(2, 5), words(2, 7)])
    assert low.tolist() == [0] and high.tolist() == [13]


@pytest.mark.parametrize(
    ("name", "x", "said"),
    [
        ("noise", words(), "outliers 'noise'.*int64.*Use 'tokens'"),
        ("tabular", words(), "outliers 'feature-noise'.*Use 'tokens'"),
        ("auto", torch.zeros(2, 1, 4, 4, dtype=torch.uint8), "outliers 'auto'.*uint8.*real outliers"),
        ("tokens", torch.zeros(2, 4), "outliers 'tokens'.*whole numbers.*'auto'"),
        ("tokens", torch.zeros(2, 4, 4, dtype=torch.long), r"outliers 'tokens'.*\[B, L\]"),
    ],
)
def test_generators_say_which_inputs_they_take(name: str, x: Tensor, said: str) -> None:
    with pytest.raises(InputError, match=f"(?s){said}"):
        make_outliers(name)(x, torch.zeros(len(x)))


class Pairs(Dataset):
    def __init__(self, n: int, shape: tuple[int, ...] = (1, 8, 8)) -> None:
        self.n, self.shape = n, shape

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return torch.full(self.shape, float(place + 10)), 0


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Tensor]:
        yield torch.zeros(1, 8, 8)


def test_own_data_is_drawn_from_the_generator_whatever_holds_it() -> None:
    x = inputs((40, 1, 8, 8))
    data = torch.stack([Pairs(20)[i][0] for i in range(20)])
    sources: list[Any] = [data, TensorDataset(data), Pairs(20), DataLoader(Pairs(20), batch_size=3, shuffle=True)]
    batches = [make_outliers(source)(x, x[:, 0], generator(6)) for source in sources]
    for batch in batches:
        assert torch.equal(batch.x, batches[0].x) and torch.equal(batch.severity, torch.ones(40))
    drawn = batches[0].x[:, 0, 0, 0]
    assert ((drawn >= 10) & (drawn < 30)).all() and len(drawn.unique()) > 10
    half = make_outliers(data)(x, x[:, 0], generator(6), severity=0.5)
    assert torch.allclose(half.x, (x + batches[0].x) / 2, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(REGISTRY) - {"dataset"}))
def test_config_round_trip_through_json(name: str) -> None:
    x = (
        torch.arange(64).view(16, 4)
        if name in set(TOKENS) - {"auto"}
        else inputs((16, 4) if name in FLAT else (16, 2, 8, 8))
    )
    outliers = prepared(name, x)
    config = outliers.to_config()
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    again = make_outliers(json.loads(json.dumps(config)))
    assert again.to_config() == config
    a, b = outliers(x, x[:, 0], generator()), again(x, x[:, 0], generator())
    assert torch.equal(a.x, b.x) and torch.equal(a.severity, b.severity)


def test_config_keeps_options_and_nested_parts() -> None:
    own = make_outliers("two-tier", content=["noise", Noise(scale=5.0, clip=True)], style_severity=0.2)
    config = Outliers.from_config(json.loads(json.dumps(own.to_config()))).to_config()
    assert config["content"][1]["scale"] == 5.0 and config["content"][1]["clip"] is True
    assert config["style"][0]["severity"] == [0.2, 0.2]
    data_config = make_outliers(Pairs(3)).to_config()
    assert json.loads(json.dumps(data_config)) == {"name": "dataset", "severity": [1.0, 1.0], "data": "Pairs of 3"}
    with pytest.raises(InputError, match="config does not hold the data"):
        Outliers.from_config(data_config)


def test_measured_range_equals_numpy_over_batches_of_any_rank() -> None:
    for shape in [(7, 5), *SHAPES]:
        x = inputs(shape)
        low, high = measure_range(x.split(5))
        array = np.moveaxis(x.numpy(), 1, 0).reshape(shape[1], -1)
        assert np.array_equal(low.numpy(), array.min(1)) and np.array_equal(high.numpy(), array.max(1))


def test_range_may_come_in_any_broadcastable_shape() -> None:
    x = inputs((6, 3, 8, 8))
    low, high = measure_range([x])
    made = []
    for shape in ((3,), (3, 1, 1), (1, 3, 1, 1)):
        outliers = make_outliers("invert")
        outliers.prepare(low.view(shape), high.view(shape))
        made.append(outliers(x, x[:, 0], severity=1.0).x)
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])
    scalar = make_outliers("invert")
    scalar.prepare(0, 1)
    assert torch.allclose(scalar(x, x[:, 0], severity=1.0).x, 1 - x, atol=1e-6)


def taking(x: Tensor) -> SimpleNamespace:
    """What generators ask of a model that takes such inputs."""
    return SimpleNamespace(backbone=nn.Identity(), input_shape=tuple(x.shape[1:]), input_dtype=x.dtype)


def never(layout: str) -> tuple[Tensor, Tensor]:
    raise AssertionError("the range was set already")


@pytest.mark.parametrize("name", ["noise", "mixed", "two-tier", "auto"])
def test_own_range_stays_and_a_given_one_wins_on_a_copy(name: str) -> None:
    x = inputs((16, 1, 8, 8))
    own = make_outliers(name)
    assert own.needs_range
    measured = own.prepared_for(taking(x), None, lambda layout: measure_range([x], layout))
    assert own.needs_range and not measured.needs_range
    own.prepare(-3.0, 3.0)
    before = own.to_config()
    kept, given = (own.prepared_for(taking(x), limits, never) for limits in (None, (0.0, 1.0)))
    assert kept.to_config() == own.to_config() == before and given.to_config()["range"] == [[0.0], [1.0]]
    a, b, c = (each(x, x[:, 0], generator()).x for each in (own, kept, given))
    assert torch.equal(a, b) and not torch.equal(a, c)
    fresh = make_outliers(name)
    fresh.prepare(0.0, 1.0)
    assert torch.equal(c, fresh(x, x[:, 0], generator()).x)


def test_a_part_keeps_the_range_that_it_was_given() -> None:
    x = inputs((16, 1, 8, 8))
    part = Noise()
    part.prepare(0.0, 100.0)
    mixed = make_outliers("mixed", parts=[part, "invert"])
    made = mixed.prepared_for(taking(x), None, lambda layout: measure_range([x], layout))
    config = made.to_config()
    assert config["parts"][0]["range"] == [[0.0], [100.0]] and "range" not in config["parts"][1]
    again = make_outliers(json.loads(json.dumps(config)))
    assert again.to_config() == config
    assert torch.equal(made(x, x[:, 0], generator()).x, again(x, x[:, 0], generator()).x)
    assert mixed.needs_range and not made.needs_range


def test_constant_channel_is_harmless() -> None:
    x = inputs((6, 2, 8, 8))
    x[:, 1] = 0.25
    for name in SPATIAL + IMAGES:
        made = prepared(name, x)(x, x[:, 0], generator()).x
        assert torch.isfinite(made).all() and torch.allclose(made[:, 1], x[:, 1], atol=1e-6), name


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: make_outliers("patchs"), "patches"),
        (lambda: make_outliers("noise", scal=2.0), "scale"),
        (lambda: make_outliers("noise", scale=-1.0), "scale: got .*a number from 1e-09 to 1e\\+09"),
        (lambda: make_outliers("feature-noise", scale=float("nan")), "scale: got .*a number from 1e-09 to 1e\\+09"),
        (lambda: make_outliers("noise", units="sigma"), "raw"),
        (lambda: make_outliers("noise", severity=(0.5, 0.2)), "pair"),
        (lambda: make_outliers("noise", severity="high"), "pair"),
        (lambda: make_outliers("patches", finest=5), "finest"),
        (lambda: make_outliers("style", flip=2), "flip: got 2; accepted: a number from 0 to 1"),
        (lambda: make_outliers("style", size=2), "size: got 2"),
        (lambda: make_outliers("mixed", parts=[]), "not empty"),
        (lambda: make_outliers("mixed", parts="noise"), "list"),
        (lambda: make_outliers("mixed", parts=["nois"]), "noise"),
        (lambda: make_outliers("two-tier", severity=0.5), "content_severity"),
        (lambda: make_outliers(Noise(), scale=1.0), "finished"),
        (
            lambda: make_outliers(3),  # type: ignore[call-overload]
            "one of",
        ),
        (lambda: make_outliers({"scale": 1.0}), "None"),
        (lambda: make_outliers("dataset"), "a data set with a length"),
        (lambda: make_outliers(Stream()), "Collect"),
        (lambda: make_outliers(torch.zeros(0, 1, 8, 8)), "at least one"),
        (lambda: make_outliers("noise").prepare(1.0, 0.0), "low <= high"),
        (lambda: make_outliers("noise").prepare(0.0, float("inf")), "finite"),
        (lambda: make_outliers("noise").prepare(torch.zeros(3), torch.ones(2)), "one per channel"),
        (lambda: make_outliers("noise").prepare(torch.zeros(3, 2), torch.ones(3, 2)), "one per channel"),
        (lambda: make_outliers("tokens", keep=0), "keep"),
        (lambda: measure_range([]), "loader empty"),
        (lambda: measure_range([torch.tensor([[1.0, float("nan")]])]), "NaN"),
        (lambda: measure_range([torch.tensor([[1.0, float("-inf")]])]), "NaN or infinite"),
        (
            lambda: measure_range([(torch.zeros(1, 1), 0)]),  # type: ignore[list-item]
            "inputs alone",
        ),
        (lambda: measure_range([torch.zeros(2, 3), torch.zeros(2, 4)]), "4 channels after 3"),
    ],
)
def test_bad_options_name_the_way_out(call: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()  # type: ignore[operator]


def test_bad_batches_name_the_way_out() -> None:
    noise = make_outliers("noise", units="raw")
    x, y = torch.zeros(4, 1, 8, 8), torch.zeros(4)
    cases: list[tuple[Any, Any, Any, str]] = [
        (x.long(), y, None, "floating-point"),
        (x[:0], y[:0], None, "non-empty"),
        (torch.zeros(4), y, None, r"\[B, C"),
        ([x], y, None, "list"),
        (x, y[:3], None, "one label for each"),
        (x, [0, 1, 2, 3], None, "one label for each"),
        (x, y, 1.5, "0, 1"),
        (x, y, "much", "0, 1"),
        (x, y, torch.tensor([0.1, 0.2]), "one or 4"),
        (x, y, torch.full((4,), -0.1), "outside"),
    ]
    for bad_x, bad_y, severity, words in cases:
        with pytest.raises(InputError, match=words):
            noise(bad_x, bad_y, severity=severity)
    with pytest.raises(NotFittedError, match="prepare"):
        make_outliers("blobs")(x, y)
    with pytest.raises(InputError, match="tabular"):
        make_outliers("two-tier")(torch.zeros(4, 6), y)
    with pytest.raises(InputError, match="auto"):
        make_outliers("tabular")(x, y)
    blobs = make_outliers("blobs")
    blobs.prepare(torch.zeros(3), torch.ones(3))
    with pytest.raises(InputError, match="1 channels"):
        blobs(x, y)
    with pytest.raises(InputError, match="transforms of the training set"):
        make_outliers(Pairs(5, (3, 8, 8)))(x, y)
    with pytest.raises(InputError, match="transforms of the training set"):
        make_outliers(torch.zeros(5, 1, 9, 9))(x, y)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("name", "x"),
    [(n, inputs(s)) for n, s in CASES if make_outliers(n).capturable] + [("tokens", words())],
)
def test_no_host_synchronisation_on_cuda(name: str, x: Tensor) -> None:
    x = x.cuda()
    y = torch.zeros(len(x), device="cuda")
    outliers = prepared(name, x)
    for device in ("cuda", "cpu"):
        numbers = torch.Generator(device).manual_seed(0)
        outliers(x, y, numbers)  # first call places the value range
        torch.cuda.set_sync_debug_mode("error")
        try:
            batch = outliers(x, y, numbers)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert batch.x.is_cuda and batch.severity.is_cuda and torch.isfinite(batch.x).all()
