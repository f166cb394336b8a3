"""Sequences of features [B, T, D] have their channels last; signals, spectrograms and images have them second."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import abnn
from abnn.errors import InputError
from abnn.outliers import REGISTRY, layout_of, make_outliers, measure_range
from abnn.outliers.ranges import FIRST, LAST
from abnn.train.loss import loss
from tests.train.test_fit import QUIET

WORDS = {"tokens", "changed-words", "destroyed-words", "sentences"}
OTHERS = {"dataset", "feature-noise", "feature-shuffle", "tabular"} | WORDS
OF_IMAGES = {"changed", "destroyed", "leaves", "tiers"}
CHANNEL_KINDS = sorted(set(REGISTRY) - OTHERS - OF_IMAGES)


def sequences(batch: int = 24, length: int = 10, features: int = 4) -> Tensor:
    """[B, T, D] whose feature d lies in [10 d, 10 d + d + 1]."""
    unit = torch.rand(batch, length, features, generator=torch.Generator().manual_seed(0))
    number = torch.arange(features)
    return 10 * number + (number + 1) * unit


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_ranges_are_those_of_the_features() -> None:
    x = sequences()
    low, high = measure_range(x.split(7), "channels-last")
    assert torch.equal(low, x.amin((0, 1))) and torch.equal(high, x.amax((0, 1)))
    assert len(measure_range([x])[0]) == 10  # without a word, the second axis
    assert torch.equal(measure_range([x[..., None]], LAST)[0], x.amin()[None])


@pytest.mark.parametrize("name", CHANNEL_KINDS)
def test_sequences_get_what_the_same_signals_get(name: str) -> None:
    x, y = sequences(), torch.zeros(24)
    ours, signal = make_outliers(name, layout=LAST), make_outliers(name)
    for each in (ours, signal):
        each.prepare(*measure_range([x], LAST))
    made, expected = ours(x, y, generator()), signal(x.mT.contiguous(), y, generator())
    assert made.x.shape == x.shape
    torch.testing.assert_close(made.x, expected.x.mT)
    assert torch.equal(made.severity, expected.severity)
    again = make_outliers(json.loads(json.dumps(ours.to_config())))
    assert torch.equal(again(x, y, generator()).x, made.x)


def test_real_outliers_come_in_the_layout_of_the_inputs() -> None:
    x, y, far = sequences(), torch.zeros(24), torch.full((5, 10, 4), 99.0)
    for source in (far, TensorDataset(far)):
        mixed = make_outliers("mixed", parts=["noise", make_outliers(source)], layout=LAST)
        mixed.prepare(*measure_range([x], LAST))
        made = mixed(x, y, generator()).x
        assert int((made == 99).all(2).all(1).sum()) == 12
    with pytest.raises(InputError, match=r"items of shape \(4, 10\); accepted: tensors of shape \(10, 4\)"):
        make_outliers(far.mT, layout=LAST)(x, y)


def transformer() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 16, batch_first=True)

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean(1)

    return nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Mean(), nn.Linear(4, 3)).eval()


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x)[0][:, -1])


def signals(channels: int) -> nn.Module:
    return nn.Sequential(nn.Conv1d(channels, 8, 3), nn.ReLU(), nn.Conv1d(8, 8, 3), nn.Flatten(), nn.LazyLinear(3))


@pytest.mark.parametrize(
    ("network", "shape", "layout"),
    [
        (transformer(), (10, 4), LAST),
        (nn.Sequential(nn.Linear(4, 8), nn.Conv1d(10, 8, 3)), (10, 4), LAST),
        (Recurrent(), (10, 4), LAST),
        (signals(4), (10, 4), LAST),  # it turns its inputs itself
        (signals(10), (10, 4), FIRST),
        (signals(4), (4, 4), FIRST),
        (nn.Sequential(nn.Unflatten(1, (1, 10)), nn.Conv2d(1, 8, 3)), (10, 4), FIRST),
        (nn.Sequential(nn.Flatten(), nn.Linear(40, 3)), (10, 4), FIRST),
        (nn.Sequential(nn.Conv2d(3, 8, 3)), (3, 8, 8), FIRST),
        (nn.Linear(4, 3), (4,), FIRST),
        (nn.Identity(), (10, 4), FIRST),
    ],
)
def test_the_first_layer_with_weights_tells(network: nn.Module, shape: tuple[int, ...], layout: str) -> None:
    model = SimpleNamespace(network=network, input_shape=shape, input_dtype=torch.float32)
    assert layout_of(model) == layout
    model.input_dtype = torch.int64
    assert layout_of(model) == FIRST


def test_a_fit_measures_features_and_a_caller_may_know_better(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = sequences(), torch.arange(24) % 3
    model = abnn.attach(transformer(), x[:1])
    kind, seen = REGISTRY["noise"], []

    def noting(self: object, low: Tensor, high: Tensor) -> None:
        seen.append(low.tolist())
        original(self, low, high)  # type: ignore[arg-type]

    original = kind.prepare_missing
    monkeypatch.setattr(kind, "prepare_missing", noting)
    abnn.fit(model, [(x, y)], "noise", epochs=1, **QUIET)
    assert seen.pop() == x.amin((0, 1)).tolist()
    loss(model, x, y, "noise")
    assert seen.pop() == x.amin((0, 1)).tolist()
    loss(model, x, y, make_outliers("noise", layout=FIRST))
    assert seen.pop() == x.amin((0, 2)).tolist()


def test_a_config_says_nothing_of_the_usual_layout() -> None:
    """So that checkpoints and records of images are those of before."""
    convolution, linear = (
        SimpleNamespace(backbone=layer, input_shape=(10, 4), input_dtype=torch.float32)
        for layer in (nn.Conv1d(10, 2, 3), nn.Linear(4, 2))
    )
    unit = (torch.zeros(1), torch.ones(1))
    plain = make_outliers("noise").prepared_for(convolution, (0.0, 1.0), lambda layout: unit)
    assert "layout" not in plain.to_config()
    assert make_outliers("noise").prepared_for(linear, (0.0, 1.0), lambda layout: unit).to_config()["layout"] == LAST


def test_a_spectrogram_is_no_image() -> None:
    """Three dimensions with the batch: no scenes of leaves, and nothing that turns or stretches both axes."""
    chosen = make_outliers("auto").chosen_for(sequences())
    names = json.dumps(chosen.to_config())
    assert not any(f'"{name}"' in names for name in OF_IMAGES)
    x = torch.zeros(50, 6, 12)
    x[:, 2, 5] = 1.0  # one channel at one time
    style = make_outliers("style", composite=0.0, flip=0.0)
    style.prepare(0.0, 1.0)
    made = style(x, torch.zeros(50), generator(), severity=0.3).x
    assert (made[:, [0, 1, 3, 4, 5]] == 0).all() and not torch.equal(made, x)


def test_wrong_layouts() -> None:
    with pytest.raises(InputError, match="layout: got 'channels-lst'.*Did you mean 'channels-last'"):
        make_outliers("noise", layout="channels-lst")
