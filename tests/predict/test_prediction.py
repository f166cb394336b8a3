"""Predictions: what they are made of, what they do not depend on, and what is refused."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.errors import InputError, NotFittedError
from abnn.model.passes import Pass
from abnn.predict import Plain, Prediction, chunks, concatenate
from abnn.scores import SAMPLE_SCORES, SCORES
from tests.conftest import generator, mlp, randomise_attachments


@pytest.fixture
def fitted(attached: Attached) -> Attached:
    """With statistics of the training data."""
    x = torch.randn(60, 1, 12, 12, generator=generator(8))
    attached.distance.fit(list(zip(x.split(10), (torch.arange(60) % 4).split(10))))
    return attached


def test_parts_of_a_prediction(fitted: Attached, images: Tensor) -> None:
    prediction = fitted.predict(images, draws=6, seed=1)
    fitted.resample(6, seed=1)
    with torch.no_grad():
        probs = fitted.draw_logits(images).softmax(2).numpy()
        distance = fitted.distance(images)
    np.testing.assert_allclose(prediction.samples.numpy(), probs, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(prediction.probs.numpy(), probs.mean(0), rtol=1e-4, atol=1e-6)
    assert prediction.label.tolist() == probs.mean(0).argmax(1).tolist()
    assert len(prediction) == 5 and prediction.gate == fitted.distance.gate
    assert prediction.distance is not None
    torch.testing.assert_close(prediction.distance, distance)
    np.testing.assert_allclose(prediction.probs.sum(1).numpy(), 1, rtol=1e-5)


def test_every_score_can_be_asked_for(fitted: Attached, images: Tensor) -> None:
    prediction = fitted.predict(images)
    for name, function in SAMPLE_SCORES.items():
        assert torch.equal(prediction.score_by(name), function(prediction.samples))
        assert torch.equal(fitted.predict(images, score=name).score, prediction.score_by(name))
    assert prediction.distance is not None and prediction.gate is not None
    assert prediction.misfit is not None and prediction.misfit.shape == prediction.probs.shape
    low, high, fits, misfits = prediction.gate
    reach = (prediction.distance.numpy() - low) / (high - low)
    misfit = prediction.misfit.numpy()[np.arange(len(prediction)), prediction.label]
    unfit = np.clip((misfit - fits) / (misfits - fits), -1, 1)
    out = np.clip(reach, 0, 1) ** 3
    margin, entropy = (prediction.score_by(each).numpy() for each in ("margin", "entropy"))
    expected = (1 - out) * margin + out * entropy + 0.2 * (unfit + np.clip(reach, -1, 1)) + 2 * out
    np.testing.assert_allclose(prediction.score_by("gated").numpy(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(prediction.score_by("distance"), prediction.distance)
    assert prediction.default == "gated" and torch.equal(prediction.score, prediction.score_by("gated"))


def test_every_score_of_what_is_not_a_number_is_infinite(fitted: Attached, images: Tensor) -> None:
    prediction = fitted.predict(images)
    whole = {name: prediction.score_by(name) for name in SCORES}
    prediction.samples[1, 2] = float("nan")
    for name, scores in whole.items():
        assert prediction.score_by(name).tolist() == [inf if row == 2 else s for row, s in enumerate(scores.tolist())]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_that_was_converted_is_explained(fitted: Attached, images: Tensor, dtype: torch.dtype) -> None:
    message = f"model: got weights converted to {dtype}; accepted: torch.float32.*before attaching"
    with pytest.raises(InputError, match=message):
        copy.deepcopy(fitted).to(dtype).predict(images.to(dtype))
    abnn.attach(copy.deepcopy(fitted.backbone).to(torch.float64), images.double()).predict(images)


def test_without_statistics_the_score_is_the_entropy(attached: Attached, images: Tensor) -> None:
    prediction = attached.predict(images)
    assert prediction.default == "entropy" and prediction.distance is None
    for name in ("distance", "gated"):
        with pytest.raises(NotFittedError, match=f"score: '{name}' needs the statistics"):
            prediction.score_by(name)
        with pytest.raises(NotFittedError, match="needs the statistics"):
            attached.predict(images, score=name)


def same(left: Prediction, right: Prediction) -> None:
    torch.testing.assert_close(left.samples, right.samples, rtol=1e-4, atol=1e-6)
    if left.distance is not None and right.distance is not None:
        torch.testing.assert_close(left.distance, right.distance, rtol=1e-4, atol=1e-6)
    if left.misfit is not None and right.misfit is not None:
        torch.testing.assert_close(left.misfit, right.misfit, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["conv", "chain", "replace"])
def test_a_result_does_not_depend_on_the_batch(small_net: nn.Module, kind: str) -> None:
    x = torch.randn(7, 1, 12, 12, generator=generator(4))
    model = randomise_attachments(abnn.attach(small_net, x[:1], kind=kind), 0.05)
    together = model.predict(x, draws=4, seed=2)
    same(together, concatenate([model.predict(row[None], draws=4, seed=2) for row in x]))
    same(together, concatenate([model.predict(part, draws=4, seed=2) for part in x.split(3)]))
    order = torch.randperm(7, generator=generator(1))
    same(Prediction(together.samples[:, order]), model.predict(x[order], draws=4, seed=2))
    strangers = 100 * torch.randn(3, 1, 12, 12, generator=generator(5))
    same(together, Prediction(model.predict(torch.cat([x, strangers]), draws=4, seed=2).samples[:, :7]))


def test_more_draws_begin_with_the_same_draws(attached: Attached, images: Tensor) -> None:
    few, many = attached.predict(images, draws=3), attached.predict(images, draws=8)
    torch.testing.assert_close(few.samples, many.samples[:3], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("inputs", [0.5, 1, 3, 12, 1000])
def test_chunks_change_nothing(fitted: Attached, images: Tensor, inputs: float, seed: int | None) -> None:
    """A limit that lets through so many inputs times draws at once."""
    limit = int(inputs * 4 * fitted.folded_bytes)
    torch.manual_seed(3)
    whole = fitted.predict(images, draws=5, seed=seed)
    torch.manual_seed(3)
    same(whole, fitted.predict(images, draws=5, seed=seed, memory_limit=limit))


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inputs times draws of every pass."""
    seen: list[int] = []
    plain = Pass.__call__

    def watched(self: Pass, x: Tensor) -> Tensor:
        seen.append(len(x) * self.layers[0].draws)
        return plain(self, x)

    monkeypatch.setattr(Pass, "__call__", watched)
    return seen


def test_memory_limit_is_kept(attached: Attached, images: Tensor, rows: list[int]) -> None:
    for inputs in (1, 4, 9):
        rows.clear()
        attached.predict(images, draws=6, memory_limit=inputs * 4 * attached.folded_bytes)
        assert max(rows) <= inputs and sum(rows) >= 6 * len(images)


def test_many_draws_come_in_parts_and_are_the_same_draws(attached: Attached, images: Tensor, rows: list[int]) -> None:
    ten = attached.predict(images, draws=10)
    assert rows == [10 * len(images)]
    hundred = attached.predict(images, draws=103)
    assert max(rows) <= 1.25 * rows[0] and len(rows) > 8
    torch.testing.assert_close(hundred.samples[:10], ten.samples, rtol=1e-4, atol=1e-6)
    attached.resample(103, seed=0)
    with torch.no_grad():
        torch.testing.assert_close(hundred.samples, attached.draw_logits(images).softmax(2), rtol=1e-4, atol=1e-6)


def test_large_batches_come_in_parts(attached: Attached, monkeypatch: pytest.MonkeyPatch, rows: list[int]) -> None:
    x = torch.randn(50, 1, 12, 12, generator=generator(3))
    whole = attached.predict(x, draws=4)
    assert rows == [4 * 50]
    monkeypatch.setattr(chunks, "CACHE", 0)  # as few rows as are worth it
    same(attached.predict(x, draws=4), whole)
    assert len(rows) == 1 + 4 and max(rows[1:]) <= 64


def test_seeds(attached: Attached, images: Tensor) -> None:
    assert torch.equal(attached.predict(images, seed=1).samples, attached.predict(images, seed=1).samples)
    assert not torch.allclose(attached.predict(images, seed=1).samples, attached.predict(images, seed=2).samples)
    assert not torch.allclose(attached.predict(images, seed=None).samples, attached.predict(images, seed=None).samples)
    torch.manual_seed(5)
    first = attached.predict(images, seed=None).samples
    torch.manual_seed(5)
    assert torch.equal(attached.predict(images, seed=None).samples, first)


@pytest.mark.parametrize("seed", [0, None])
def test_prediction_leaves_the_model_as_it_was(fitted: Attached, images: Tensor, seed: int | None) -> None:
    fitted.train()
    fitted.resample(10, seed=77)
    noise = [layer.weight_noise.clone() for layer in fitted.layers]
    state = {name: value.clone() for name, value in fitted.state_dict().items()}
    fitted.predict(images, draws=10, seed=seed)
    assert all(torch.equal(old, layer.weight_noise) for old, layer in zip(noise, fitted.layers))
    assert all(torch.equal(state[name], value) for name, value in fitted.state_dict().items())
    assert fitted.training and all(module.training for module in fitted.net.modules())
    fitted(images).sum().backward()  # nothing of inference mode is left


def test_noise_is_put_back_after_an_error(attached: Attached) -> None:
    noise = attached.layers[0].weight_noise
    with pytest.raises(InputError):
        attached.predict(torch.zeros(2, 1, 12, 0))
    assert attached.layers[0].weight_noise is noise


def test_inputs_of_other_kinds(attached: Attached, images: Tensor) -> None:
    expected = attached.predict(images)
    same(attached.predict(images.numpy()), expected)
    same(attached.predict(images.double()), expected)
    assert len(attached.predict(torch.zeros(2, 1, 16, 9))) == 2  # images of another size
    assert not expected.samples.is_inference() and expected.samples.dtype == torch.float32


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(1, 12, 12), r"x: got shape \(1, 12, 12\); accepted: shape \(batch, 1, 12, 12\).*x\[None\]"),
        (torch.zeros(2, 12), r"x: got shape \(2, 12\).*rank"),
        (torch.zeros(2, 3, 12, 12), r"x: got shape \(2, 3, 12, 12\).*channels"),
        (torch.zeros(0, 1, 12, 12), "x: got an empty batch"),
        (torch.zeros(2, 1, 12, 12, dtype=torch.uint8), r"x: got dtype torch.uint8; accepted: dtype torch.float32"),
        ([torch.zeros(1, 12, 12)], "x: got shape .*accepted: shape .batch"),
        (torch.zeros(2, 1, 12, 0), r"x: got inputs of shape \(1, 12, 0\), on which the network fails"),
    ],
)
def test_bad_inputs_are_explained(attached: Attached, x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attached.predict(x)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named_by_row(attached: Attached, value: float) -> None:
    x = torch.zeros(9, 1, 12, 12)
    x[1, 0, 3, 3] = x[4, 0, 0, 0] = value
    with pytest.raises(InputError, match=r"x: got NaN or infinite values in rows 1, 4; accepted: finite values"):
        attached.predict(x)
    x[:] = value
    with pytest.raises(InputError, match=r"rows 0, 1, 2, 3, 4, \.\.\.;"):
        attached.predict(x)


def test_flat_inputs_must_match(tabular: tuple[Tensor, Tensor]) -> None:
    model = abnn.attach(mlp(), tabular[0][:1])
    with pytest.raises(InputError, match=r"x: got shape \(64, 5\); accepted: shape \(batch, 6\)"):
        model.predict(tabular[0][:, :5])
    assert len(model.predict(tabular[0])) == 64


def test_sequences_may_have_another_length_whichever_dimension_is_theirs() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x).mean(1))

    model = abnn.attach(Words(), torch.randn(1, 10, 6), at=["body"])
    assert len(model.predict(torch.randn(2, 7, 6))) == 2
    for wrong in (torch.randn(2, 10, 5), torch.randn(2, 7, 5)):
        with pytest.raises(InputError, match="x: got"):
            model.predict(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 0}, "draws: got 0"),
        ({"draws": -1}, "draws: got -1"),
        ({"draws": 1.5}, "draws: got 1.5"),
        ({"draws": True}, "draws: got True"),
        ({"draws": "3"}, "draws: got '3'"),
        ({"score": "entropi"}, "score: got 'entropi'.*Did you mean 'entropy'"),
        ({"memory_limit": 0}, "memory_limit: got 0; accepted: a positive number of bytes, or None"),
        ({"memory_limit": "1G"}, "memory_limit: got '1G'"),
        ({"seed": "a"}, "seed: got 'a'"),
    ],
)
def test_bad_options_are_explained(attached: Attached, images: Tensor, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        attached.predict(images, **options)
    with pytest.raises(InputError, match="score: got 'x'"):
        attached.predict(images).score_by("x")


def test_arrays_and_whole_numbers_of_numpy(attached: Attached, images: Tensor) -> None:
    mirrored = images.numpy()[..., ::-1]
    assert mirrored.strides[-1] < 0
    expected = attached.predict(images.flip(-1), draws=3)
    same(attached.predict(mirrored, draws=3), expected)
    same(attached.predict(mirrored, draws=np.int64(3)), expected)  # type: ignore[arg-type]
    attached.resample(np.int64(3), seed=0)  # type: ignore[arg-type]
    assert attached.draws == 3 and type(attached.draws) is int


def test_outputs_that_are_no_classes_for_larger_images(images: Tensor) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 3, 12)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).relu()).squeeze(-1).squeeze(-1)

    model = abnn.attach(Net(), images[:1], at="first")
    assert model.predict(images).probs.shape == (5, 3)
    with pytest.raises(InputError, match="model: got a network with outputs of shape .* accepted: one logit for each"):
        model.predict(torch.zeros(2, 1, 13, 13))


def test_threads_take_turns(fitted: Attached, images: Tensor) -> None:
    expected = {(draws, seed): fitted.predict(images, draws, seed).probs for draws in (2, 5) for seed in (0, 1)}
    with ThreadPoolExecutor(4) as pool:
        found = [(key, pool.submit(fitted.predict, images, *key)) for key in [*expected] * 8]
    assert all(torch.equal(future.result().probs, expected[key]) for key, future in found)


def test_joined_predictions(fitted: Attached, images: Tensor) -> None:
    whole = fitted.predict(images)
    joined = concatenate([fitted.predict(images[:2]), fitted.predict(images[2:])])
    same(whole, joined)
    assert joined.gate == whole.gate and joined.default == whole.default
    for name in SCORES:
        torch.testing.assert_close(joined.score_by(name), whole.score_by(name), rtol=1e-3, atol=1e-5)
    assert concatenate([Prediction(whole.samples)]).distance is None


def test_a_plain_network_may_return_more_than_logits(small_net: nn.Module, images: Tensor) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.net(x), x

    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> None:
            return None

    plain, several = Plain(small_net, images), Plain(Several(), images)
    assert several.classes == plain.classes
    assert torch.equal(several.predict(images).probs, plain.predict(images).probs)
    with pytest.raises(InputError, match="network: got one whose output has no tensor"):
        Plain(Nothing(), images)


def test_a_plain_network_takes_an_example_from_any_device(images: Tensor) -> None:
    """The meta device stands in for a GPU: both refuse tensors of the CPU."""
    with torch.device("meta"):
        network = nn.Sequential(nn.Flatten(), nn.Linear(144, 4))
    assert Plain(network, images).classes == 4
    assert Plain(nn.Flatten(), images).classes == 144  # no weights, no device
