"""Predictions: what they are made of, what they do not depend on, and what is refused."""

from __future__ import annotations

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import inf
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.errors import InputError, NotFittedError
from abnn.model.passes import Pass
from abnn.model.views import shifted
from abnn.networks.by_name import PaperResNet
from abnn.predict import Plain, Prediction, chunks, concatenate
from abnn.scores import SAMPLE_SCORES, SCORES
from abnn.scores.probability import ONE_DRAW_SCORES
from abnn.triage.thresholds import lift
from tests.conftest import Reader, generator, mlp, random_head, randomise_attachments, with_score

KINDS = ["bounded", "chain", "replace"]


@pytest.fixture
def fitted(attached: Attached) -> Attached:
    """With a learnt score, and draws that differ."""
    return with_score(widened(attached), torch.randn(60, 1, 12, 12, generator=generator(8)))


def widened(model: Attached, by: float = 4.0) -> Attached:
    """With posteriors so wide that every draw says something else."""
    with torch.no_grad():
        for name, parameter in model.attachment_parameters():
            if name.endswith("rho"):
                parameter.add_(by)
    return model


def logits_of_draws(model: Attached, x: Tensor, draws: int) -> Tensor:
    model.resample(draws, seed=1)
    with torch.no_grad():
        return model.draw_logits(x)


@pytest.mark.parametrize("draws", [None, 0, 1, 6])
def test_samples_are_the_plain_network_and_every_draw(fitted: Attached, images: Tensor, draws: int | None) -> None:
    prediction = fitted.predict(images, draws=draws, seed=1)
    logits = logits_of_draws(fitted, images, draws or 0)
    with torch.no_grad():
        plain = fitted.backbone(images).softmax(1)
    assert prediction.samples.shape == (1 + (draws or 1), 5, 4)
    torch.testing.assert_close(prediction.samples[0], plain, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(prediction.samples, logits.softmax(2), rtol=1e-4, atol=1e-6)
    expected = logits.softmax(2).mean(0)
    if draws != 6:  # one beside the plain network
        assert prediction.share is not None
        expected = torch.lerp(plain, expected, prediction.share[:, None])
    torch.testing.assert_close(prediction.probs, expected, rtol=1e-4, atol=1e-6)
    assert prediction.label.tolist() == expected.argmax(1).tolist()
    assert len(prediction) == 5 and prediction.views == 1
    np.testing.assert_allclose(prediction.probs.sum(1).numpy(), 1, rtol=1e-5)
    assert (prediction.samples[1:] - plain).abs().max() > 1e-3  # attachments and draws count


@pytest.mark.parametrize("kind", ["chain", "replace"])
def test_other_kinds_have_no_plain_network_and_ten_draws(small_net: nn.Module, images: Tensor, kind: str) -> None:
    model = randomise_attachments(abnn.attach(small_net, images[:1], kind=kind), 0.05)
    assert model.predict(images).samples.shape == (10, 5, 4)
    means = model.predict(images, draws=0)
    assert means.samples.shape == (1, 5, 4) and means.combined is means.parts is None
    model.resample(0)
    with torch.no_grad():
        torch.testing.assert_close(means.samples, model.draw_logits(images).softmax(2), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("draws", [0, 1, 6])
def test_score_and_parts_are_those_of_the_plain_network_and_all_draws(
    fitted: Attached, images: Tensor, draws: int
) -> None:
    prediction = fitted.predict(images, draws=draws, seed=1)
    logits = logits_of_draws(fitted, images, draws)
    run = Pass(fitted, noting=True)
    with torch.no_grad():
        run(images)
        value, parts, _ = fitted.combined.judge(fitted.gather(run, logits))
    assert prediction.combined is not None and prediction.parts is not None
    assert prediction.combined.shape == (5,) and list(prediction.parts) == fitted.combined.names
    assert [name for name in prediction.parts if name.startswith("distance at ")] == [
        f"distance at {place}" for place in fitted.places
    ]
    torch.testing.assert_close(prediction.combined, value, rtol=1e-3, atol=1e-3)
    found = torch.stack([*prediction.parts.values()], 1)
    torch.testing.assert_close(found, parts, rtol=1e-2, atol=1e-2)  # ln of small numbers in units of a small spread
    energy = torch.logsumexp(logits[0], 1)
    unit = (-energy - fitted.combined.centre[0]) / fitted.combined.unit[0]
    torch.testing.assert_close(prediction.parts["energy"], unit, rtol=1e-3, atol=1e-3)


def test_attachments_count_where_an_input_looks_changed(fitted: Attached, images: Tensor) -> None:
    """As the share says with mean weights; draws that were asked for count everywhere."""
    prediction = fitted.predict(images)
    assert prediction.parts is not None
    looks = prediction.parts["looks changed"]
    share = fitted.combined.trust * (looks - fitted.combined.familiar).clamp(0, 1)
    assert prediction.share is not None and torch.equal(prediction.share, share)
    share = torch.tensor([0.0, 0.25, 0.5, 1.0, 0.0])
    plain, attached = replace(prediction, share=share).samples
    torch.testing.assert_close(
        replace(prediction, share=share).probs, (1 - share[:, None]) * plain + share[:, None] * attached
    )
    drawn = fitted.predict(images, draws=3)
    assert torch.equal(drawn.probs, drawn.samples.mean(0))


def test_every_score_can_be_asked_for(fitted: Attached, images: Tensor) -> None:
    prediction = fitted.predict(images, draws=3)
    for name, function in SAMPLE_SCORES.items():
        rows = prediction.probs[None] if name in ONE_DRAW_SCORES else prediction.samples
        assert torch.equal(prediction.score_by(name), function(rows))
        assert torch.equal(fitted.predict(images, draws=3, score=name).score, prediction.score_by(name))
    assert prediction.combined is not None and prediction.parts is not None
    assert torch.equal(prediction.score_by("combined"), prediction.combined)
    assert torch.equal(prediction.score_by("energy"), prediction.parts["energy"])
    places = [part for name, part in prediction.parts.items() if name.startswith("distance at ")]
    torch.testing.assert_close(prediction.score_by("distance"), torch.stack(places).mean(0))
    assert prediction.default == "combined" and torch.equal(prediction.score, prediction.combined)


def test_every_score_of_what_is_not_a_number_is_infinite(fitted: Attached, images: Tensor) -> None:
    prediction = fitted.predict(images)
    whole = {name: prediction.score_by(name) for name in SCORES if "classes" in SCORES[name].about}
    prediction.samples[1, 2] = float("nan")
    for name, scores in whole.items():
        assert prediction.score_by(name).tolist() == [inf if row == 2 else s for row, s in enumerate(scores.tolist())]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_a_model_that_was_converted_is_explained(fitted: Attached, images: Tensor, dtype: torch.dtype) -> None:
    message = f"model: got weights converted to {dtype}; accepted: torch.float32.*before attaching"
    with pytest.raises(InputError, match=message):
        copy.deepcopy(fitted).to(dtype).predict(images.to(dtype))
    abnn.attach(copy.deepcopy(fitted.backbone).to(torch.float64), images.double()).predict(images)


def test_without_a_learnt_score_it_is_the_entropy(attached: Attached, images: Tensor) -> None:
    prediction = attached.predict(images)
    assert prediction.default == "entropy" and prediction.combined is prediction.parts is None
    for name in ("combined", "energy", "distance"):
        with pytest.raises(NotFittedError, match=f"score: '{name}' needs"):
            prediction.score_by(name)
        with pytest.raises(NotFittedError, match=f"score: '{name}' needs"):
            attached.predict(images, score=name)


def same(left: Prediction, right: Prediction) -> None:
    """Up to rounding, which the score counts in units of what is usual: small ones in the random networks of tests."""
    torch.testing.assert_close(left.samples, right.samples, rtol=1e-4, atol=1e-6)
    assert (left.combined is None) == (right.combined is None) and (left.parts is None) == (right.parts is None)
    if left.combined is not None and right.combined is not None:
        torch.testing.assert_close(left.combined, right.combined, rtol=1e-3, atol=1e-3)
    if left.parts is not None and right.parts is not None:
        assert list(left.parts) == list(right.parts)
        for name, part in left.parts.items():
            torch.testing.assert_close(part, right.parts[name], rtol=1e-2, atol=1e-2, msg=name)


def picked(prediction: Prediction, rows: Any) -> Prediction:
    """Some of its inputs."""
    parts = None if prediction.parts is None else {name: part[rows] for name, part in prediction.parts.items()}
    combined = None if prediction.combined is None else prediction.combined[rows]
    return replace(prediction, samples=prediction.samples[:, rows], combined=combined, parts=parts)


@pytest.mark.parametrize("draws", [None, 0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_does_not_depend_on_the_batch(small_net: nn.Module, kind: str, draws: int | None) -> None:
    x = torch.randn(7, 1, 12, 12, generator=generator(4))
    model = widened(randomise_attachments(abnn.attach(small_net, x[:1], kind=kind), 0.05), 1.0)
    if kind == "bounded":
        with_score(model, torch.randn(60, 1, 12, 12, generator=generator(8)))
    together = model.predict(x, draws=draws, seed=2)
    same(together, concatenate([model.predict(row[None], draws=draws, seed=2) for row in x]))
    same(together, concatenate([model.predict(part, draws=draws, seed=2) for part in x.split(3)]))
    order = torch.randperm(7, generator=generator(1))
    same(picked(together, order), model.predict(x[order], draws=draws, seed=2))
    strangers = 100 * torch.randn(3, 1, 12, 12, generator=generator(5))
    same(together, picked(model.predict(torch.cat([x, strangers]), draws=draws, seed=2), slice(7)))


@pytest.mark.parametrize("draws", [0, 12])
@pytest.mark.no_cover
def test_scores_differ_between_batches_by_less_than_their_resolution(small_net: nn.Module, draws: int) -> None:
    """That of thresholds, see abnn.triage.thresholds.lift(): what a batch changes must change no verdict."""
    nn.init.normal_(small_net.head.weight, std=3.0)  # type: ignore[arg-type,union-attr]  # as sure as networks are
    x = torch.randn(64, 1, 12, 12, generator=generator(4))
    model = with_score(widened(randomise_attachments(abnn.attach(small_net, x[:1]), 0.05), 3.0), x)
    whole = model.predict(x, draws=draws)
    others = [
        concatenate([model.predict(part, draws=draws) for part in x.split(1)]),
        concatenate([model.predict(part, draws=draws) for part in x.split(9)]),
        model.predict(x, draws=draws, memory_limit=20 * 4 * model.folded_bytes),
        model.predict(x, draws=draws, memory_limit=3 * 4 * model.folded_bytes),
    ]
    # "combined" also has the part "change of mind", ln(1e-3 + KL), whose spread is a few hundred roundings in a network as sure
    # as this one; its other parts are held to the resolution.
    assert whole.parts is not None
    for name in ("entropy", "energy", "distance"):
        scores = whole.score_by(name)
        resolution = lift(0.0, scores.double().numpy())
        for other in others:
            assert (other.score_by(name) - scores).abs().max() <= resolution / 2, name
    for other in others:
        assert other.parts is not None
        for name in whole.parts:
            if name != "change of mind":
                torch.testing.assert_close(other.parts[name], whole.parts[name], rtol=0, atol=1e-3, msg=name)


def test_networks_that_run_twice_do_not_depend_on_the_batch_either() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).relu()
            return self.head(torch.cat([h, self.second(h).relu()], dim=1))

    torch.manual_seed(0)
    x = torch.randn(40, 3, generator=generator(2))
    model = widened(randomise_attachments(abnn.attach(Skipping().eval(), x[:1], at=["second"]), 0.3), 3.0)
    with_score(model, x)
    assert model.folds_at_input
    for draws in (0, 3, 25):
        whole = model.predict(x, draws=draws)
        with torch.no_grad():
            torch.testing.assert_close(whole.samples[0], model.backbone(x).softmax(1))
        same(whole, concatenate([model.predict(row[None], draws=draws) for row in x]))
        same(whole, model.predict(x, draws=draws, memory_limit=9 * 4 * model.folded_bytes))


def test_more_draws_begin_with_the_same_draws(fitted: Attached, images: Tensor) -> None:
    few, many = fitted.predict(images, draws=3), fitted.predict(images, draws=8)
    torch.testing.assert_close(few.samples, many.samples[:4], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seed", [0, None])
@pytest.mark.parametrize("draws", [0, 5, 25])
@pytest.mark.parametrize("inputs", [0.5, 1, 3, 12, 1000])
def test_chunks_change_nothing(fitted: Attached, images: Tensor, inputs: float, draws: int, seed: int | None) -> None:
    """A limit that lets through so many inputs times draws at once. The score is that of all draws, too."""
    limit = int(inputs * 4 * fitted.folded_bytes)
    torch.manual_seed(3)
    whole = fitted.predict(images, draws=draws, seed=seed)
    torch.manual_seed(3)
    found = fitted.predict(images, draws=draws, seed=seed, memory_limit=limit)
    same(whole, found)
    assert found.combined is not None and not found.combined.is_inference() and not found.samples.is_inference()


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Inputs times draws of every pass, the plain network among these."""
    seen: list[int] = []
    plain = Pass.__call__

    def watched(self: Pass, x: Tensor) -> Tensor:
        seen.append(len(x) // self.state.batches * self.state.groups)
        return plain(self, x)

    monkeypatch.setattr(Pass, "__call__", watched)
    return seen


def test_memory_limit_is_kept(attached: Attached, images: Tensor, rows: list[int]) -> None:
    for inputs in (2, 4, 9):
        rows.clear()
        attached.predict(images, draws=6, memory_limit=inputs * 4 * attached.folded_bytes)
        assert max(rows) <= inputs and sum(rows) >= 7 * len(images)


def test_many_draws_come_in_parts_and_are_the_same_draws(attached: Attached, images: Tensor, rows: list[int]) -> None:
    ten = attached.predict(images, draws=10)
    assert rows == [11 * len(images)]
    hundred = attached.predict(images, draws=103)
    assert max(rows) <= 1.25 * rows[0] and len(rows) > 8
    torch.testing.assert_close(hundred.samples[:11], ten.samples, rtol=1e-4, atol=1e-6)
    attached.resample(103, seed=0)
    with torch.no_grad():
        torch.testing.assert_close(hundred.samples, attached.draw_logits(images).softmax(2), rtol=1e-4, atol=1e-6)


def test_large_batches_come_in_parts(attached: Attached, monkeypatch: pytest.MonkeyPatch, rows: list[int]) -> None:
    x = torch.randn(50, 1, 12, 12, generator=generator(3))
    whole = attached.predict(x, draws=4)
    assert rows == [5 * 50]
    monkeypatch.setattr(chunks, "CACHE", 0)  # as few rows as are worth it
    same(attached.predict(x, draws=4), whole)
    assert len(rows) == 1 + 5 and max(rows[1:]) <= 64


def test_seeds(fitted: Attached, images: Tensor) -> None:
    def samples(seed: int | None, draws: int | None = 3) -> Tensor:
        return fitted.predict(images, draws=draws, seed=seed).samples

    assert torch.equal(samples(1), samples(1))
    assert not torch.allclose(samples(1), samples(2)) and not torch.allclose(samples(None), samples(None))
    assert torch.equal(samples(1)[0], samples(2)[0])  # the plain network has no draws
    torch.manual_seed(5)
    first = samples(None)
    torch.manual_seed(5)
    assert torch.equal(samples(None), first)
    for draws in (None, 0):  # mean weights belong to no seed
        assert torch.equal(samples(1, draws), samples(None, draws))


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
        ("photo.png", "x: got str; accepted: a tensor or array.*Read a file"),
        (["a text", "another"], "x: got str.*turn a text into tokens"),
        ([0.5, 0.5], r"x: got float.*torch.tensor\(x\)"),
        (np.zeros((2, 1, 12, 12), dtype=object), "x: got an array of type object; accepted: an array of numbers"),
        (torch.zeros(2, 1, 12, 12).to_sparse(), r"x: got a tensor of layout .*x.to_dense\(\)"),
        (torch.zeros(2, 1, 12, 0), r"x: got inputs of shape \(1, 12, 0\), on which the network fails"),
    ],
)
def test_bad_inputs_are_explained(attached: Attached, x: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        attached.predict(x)


def test_tables_of_pandas_are_explained(tabular: tuple[Tensor, Tensor]) -> None:
    pandas = pytest.importorskip("pandas")
    x, _ = tabular
    model = abnn.attach(nn.Sequential(nn.Linear(x.shape[1], 8), nn.ReLU(), nn.Linear(8, 3)), x[:1])
    table = pandas.DataFrame(x.numpy())
    with pytest.raises(InputError, match=r"x: got DataFrame; accepted: .* Pass x.to_numpy\(\)"):
        model.predict(table)
    same(model.predict(table.to_numpy()), model.predict(x))


@pytest.mark.parametrize("several", [False, True])
def test_tokens_without_an_embedding_are_explained(several: bool) -> None:
    def batch(tokens: Tensor) -> Any:
        return {"input_ids": tokens} if several else tokens

    model = abnn.attach(Reader(), batch(torch.zeros(1, 5, dtype=torch.int64)))
    with pytest.raises(
        InputError, match=r"x: got whole numbers from 3 to 20 in shape \(2, 2\), on .* fails: .*tokenizer"
    ):
        model.predict(batch(torch.tensor([[3, 4], [5, 20]])))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named_by_row(attached: Attached, value: float) -> None:
    x = torch.zeros(9, 1, 12, 12)
    x[1, 0, 3, 3] = x[4, 0, 0, 0] = value
    with pytest.raises(
        InputError, match=r"x: got NaN or infinite values in rows 1, 4 of the batch; accepted: finite values"
    ):
        attached.predict(x)
    x[:] = value
    with pytest.raises(InputError, match=r"rows 0, 1, 2, 3, 4, \.\.\. of the batch;"):
        attached.predict(x)


def test_values_that_the_type_of_the_inputs_cannot_hold_are_infinite(attached: Attached) -> None:
    x = np.zeros((2, *attached.input_shape))
    x[1] = 1e300
    with pytest.raises(InputError, match="NaN or infinite values in rows 1 of the batch"):
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
    fixed = mirrored.copy()
    fixed.setflags(write=False)
    with warnings.catch_warnings():  # torch warns of arrays that cannot be written to
        warnings.simplefilter("error")
        same(attached.predict(fixed, draws=3), expected)
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
    whole = fitted.predict(images, draws=3)
    halves = [fitted.predict(images[:2], draws=3), fitted.predict(images[2:], draws=3)]
    joined = concatenate(halves)
    same(whole, joined)
    assert joined.default == whole.default and joined.views == whole.views and len(joined) == 5
    assert joined.parts is not None and whole.parts is not None and list(joined.parts) == list(whole.parts)
    for name in (each.name for each in SCORES.values() if "classes" in each.about):
        torch.testing.assert_close(joined.score_by(name), whole.score_by(name), rtol=1e-3, atol=1e-3)
    for first, second in (halves, halves[::-1]):  # what one of them lacks
        part = concatenate([first, Prediction(second.samples)])
        assert part.combined is part.parts is None and len(part) == 5


def test_changes_apply_to_every_tensor(fitted: Attached, images: Tensor) -> None:
    prediction = replace(fitted.predict(images), own={"mine": torch.arange(5.0)})
    double = prediction.apply(lambda each: each.double())
    tensors = [double.samples, double.combined, double.own["mine"], *(double.parts or {}).values()]
    assert len(tensors) == 3 + len(fitted.combined.names)
    assert all(each is not None and each.dtype == torch.float64 for each in tensors)
    assert double.levels is None and double.default == "combined"


def test_a_loader_is_its_batches(fitted: Attached, images: Tensor) -> None:
    whole = fitted.predict(images, draws=3)
    same(fitted.predict([(images[:2], 0), (images[2:], 0)], draws=3, progress=False), whole)


def test_tables(fitted: Attached, images: Tensor) -> None:
    pandas = pytest.importorskip("pandas")
    prediction = fitted.predict(images, draws=3)
    table = prediction.to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table) == ["label", "score", "p(0)", "p(1)", "p(2)", "p(3)"]
    assert table["label"].tolist() == prediction.label.tolist()
    np.testing.assert_array_equal(table["score"].to_numpy(), prediction.score.numpy())
    np.testing.assert_array_equal(table.filter(like="p(").to_numpy(), prediction.probs.numpy())
    levels = torch.stack([prediction.score, prediction.score], 1) + torch.tensor([[1.0, 2.0]])
    levels[0], levels[1] = -100, torch.tensor([-100.0, 100.0])
    stated = torch.full((5, 4), 0.25)
    triage = SimpleNamespace(levels_of=lambda _: levels, probabilities=lambda _: stated)
    named = replace(prediction, triage=triage).to_pandas(["a", "b", "c", "d"])
    assert named["verdict"].tolist() == ["reject", "notice", "accept", "accept", "accept"]
    assert named["label"].tolist() == ["abcd"[label] for label in prediction.label.tolist()]
    assert (named[["p(a)", "p(b)", "p(c)", "p(d)"]] == 0.25).all(axis=None)
    with pytest.raises(InputError, match="class_names: got 3 names; accepted: 4, one for each of the classes"):
        prediction.to_pandas(["a", "b", "c"])


def test_a_prediction_is_shown_in_one_line(fitted: Attached, images: Tensor) -> None:
    assert repr(fitted.predict(images)) == "Prediction(5 inputs, 4 classes, score 'combined', no thresholds)"


# -- views ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def viewing() -> tuple[Attached, Tensor]:
    """A model of images that have room for views."""
    torch.manual_seed(0)
    net = random_head(PaperResNet(width=8, blocks=3, classes=4, stem="small")).eval()
    x = torch.randn(40, 1, 16, 20, generator=generator(1))
    return with_score(widened(randomise_attachments(abnn.attach(net, x[:1]), 0.1)), x), x[:6]


def test_mean_weights_look_at_every_view(viewing: tuple[Attached, Tensor]) -> None:
    model, x = viewing
    prediction = model.predict(x, draws=0, views=3)
    assert prediction.samples.shape == (4, 6, 4) and prediction.views == 3
    alone = [model.predict(shifted(x, view), draws=0, views=1) for view in range(3)]
    torch.testing.assert_close(prediction.samples[0], alone[0].samples[0], rtol=1e-4, atol=1e-6)
    for view in range(3):
        torch.testing.assert_close(prediction.samples[1 + view], alone[view].samples[1], rtol=1e-4, atol=1e-6)
    assert (prediction.samples[1] - prediction.samples[2]).abs().max() > 1e-3
    assert prediction.parts is not None and alone[0].parts is not None
    for name in ("energy", "distance at input", "distance at blocks.2"):  # the plain network sees the image as it is
        torch.testing.assert_close(prediction.parts[name], alone[0].parts[name], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(prediction.parts["attached energy"], alone[0].parts["attached energy"], atol=1e-3)


def test_each_draw_looks_at_one_view(viewing: tuple[Attached, Tensor]) -> None:
    model, x = viewing
    prediction = model.predict(x, draws=5, views=2)
    assert prediction.samples.shape == (6, 6, 4) and prediction.views == 2
    alone = [model.predict(shifted(x, view), draws=5, views=1) for view in range(2)]
    for draw in range(5):
        torch.testing.assert_close(
            prediction.samples[1 + draw], alone[draw % 2].samples[1 + draw], rtol=1e-4, atol=1e-6
        )
    torch.testing.assert_close(prediction.samples[0], alone[0].samples[0], rtol=1e-4, atol=1e-6)
    assert model.predict(x, draws=1, views=3).views == 1  # no more than there are draws


@pytest.mark.parametrize("draws", [0, 3, 7, 23])
@pytest.mark.parametrize("inputs", [1, 5, 30])
def test_views_in_chunks_and_other_batches(viewing: tuple[Attached, Tensor], draws: int, inputs: int) -> None:
    model, x = viewing
    whole = model.predict(x, draws=draws, views=3)
    same(whole, model.predict(x, draws=draws, views=3, memory_limit=inputs * 4 * model.folded_bytes))
    same(whole, concatenate([model.predict(part, draws=draws, views=3) for part in x.split(4)]))


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
