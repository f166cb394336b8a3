"""A model with post-hoc scores: fitted, predicted, evaluated, saved and loaded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.baselines import Trained, make_method
from abnn.baselines.posthoc import POSTHOC, Features, PostHocModel, build_posthoc
from abnn.baselines.posthoc.reader import Reader
from abnn.errors import FileFormatError, InputError, NotFittedError
from abnn.evaluate.collect import evaluate_set
from abnn.metrics import auroc
from abnn.model.blocks import of_any_output
from abnn.predict import Plain
from tests.conftest import alter, generator, mlp
from tests.model.test_evidence import TwoHeads

from .samples import batches, digit_reader

NAMES = [name for name in POSTHOC if name != "laplace"]


@pytest.fixture
def data() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(60, 1, 12, 12, generator=generator(8))
    return list(zip(x.split(20), (torch.arange(60) % 4).split(20)))


@pytest.fixture(params=["plain", "attached", "attached, backbone"])
def model(request: Any, small_net: nn.Module, images: Tensor) -> PostHocModel:
    """All scores on either kind of model."""
    of = "backbone" if "backbone" in request.param else "model"
    if request.param == "plain":
        return PostHocModel(Plain(small_net, images), NAMES)
    return PostHocModel(request.getfixturevalue("attached"), NAMES, of)


def test_a_prediction_has_every_score(model: PostHocModel, data: Any, images: Tensor) -> None:
    prediction = model.fit(data, draws=3).predict(images, draws=3, seed=1)
    plain = model.model.predict(images, draws=3, seed=1)
    torch.testing.assert_close(prediction.samples, plain.samples)
    assert prediction.default == model.score == "energy"
    features = model.reader.read(images, draws=3, seed=1)
    for name, score in model.scores.items():
        values = prediction.score_by(name)
        assert values.shape == (5,) and not values.requires_grad
        if name != "entropy":  # which is that of the prediction, always
            torch.testing.assert_close(values, score.score(features))
    torch.testing.assert_close(prediction.score_by("entropy"), plain.score_by("entropy"))
    shown = model.predict(images, draws=3, seed=1, score="knn")
    assert torch.equal(shown.score, shown.score_by("knn"))


@pytest.mark.no_cover
def test_small_chunks_give_the_same(model: PostHocModel, data: Any, images: Tensor, monkeypatch: Any) -> None:
    expected = model.fit(data, draws=3).predict(images, draws=3)
    monkeypatch.setattr("abnn.baselines.posthoc.reader.MEMORY_LIMIT", 1)
    chunked = model.fit(data, draws=3).predict(images, draws=3)
    for name in expected.own:
        torch.testing.assert_close(chunked.own[name], expected.own[name], rtol=2e-3, atol=2e-3)


def test_one_pass_for_all_scores(small_net: nn.Module, data: Any, images: Tensor, monkeypatch: Any) -> None:
    passes: list[int] = []
    read = Reader.read

    def counting(self: Reader, x: Tensor, draws: int, seed: int | None) -> Features:
        passes.append(len(x))
        return read(self, x, draws, seed)

    monkeypatch.setattr(Reader, "read", counting)
    names = [name for name in NAMES if name not in ("odin", "adascale")]
    model = PostHocModel(Plain(small_net, images), names)
    model.fit(data)
    assert passes == [20, 20, 20]
    model.predict(images)
    assert passes[3:] == [5]


def test_nothing_to_learn_needs_no_pass(small_net: nn.Module, images: Tensor) -> None:
    model = PostHocModel(Plain(small_net, images), ("energy", "gen", "odin", "ash"))
    assert set(model.predict(images).own) == {"energy", "gen", "odin", "ash"}
    assert model.fit(iter([])) is model


def test_block_distance_is_that_of_an_attached_model(small_net: Any, data: Any, images: Tensor) -> None:
    """Attachments add nothing at first, so the model and its backbone have the same distances."""
    attached = abnn.attach(small_net, images[:1])
    at = attached.block_names
    models = [PostHocModel(attached, ("mahalanobis-blocks",), of=of, at=at) for of in ("model", "backbone")]
    scores = [model.fit(data).predict(images) for model in models]
    torch.testing.assert_close(scores[0].score, scores[1].score, rtol=1e-3, atol=1e-3)
    assert all(each.default == "mahalanobis-blocks" for each in scores)


def test_learnt_scores_of_an_attached_model_come_with_it(small_net: Any, data: Any, images: Tensor) -> None:
    """A post-hoc score has its name to itself: "energy" is then that of the averaged logits, not a part of the learnt score."""
    attached = abnn.attach(small_net, images[:1])
    abnn.fit(attached, data, epochs=0, progress=False)
    model = PostHocModel(attached, ("energy",)).fit(data)
    prediction = model.predict(images)
    own = attached.predict(images)
    assert torch.equal(model.predict(images, score="combined").score, own.score_by("combined"))
    assert prediction.parts is not None and not torch.equal(prediction.score, prediction.parts["energy"])
    features = model.reader.read(images)
    torch.testing.assert_close(prediction.score, -features.logits.logsumexp(1))


def test_evaluation_on_digits() -> None:
    """The embedded digits: distances over all blocks tell photographs from digits better than the softmax does."""
    network, digits = digit_reader()
    model = PostHocModel(Plain(network, digits.train.x[:1]), NAMES, score="mahalanobis-blocks")
    model.fit(batches(digits.train))
    results = {
        tier: evaluate_set(model, batches(part), tier, tier)  # type: ignore[arg-type]
        for tier, part in (("id", digits.test), ("full", digits.full))
    }
    assert results["id"].correct.mean() > 0.9
    found = {name: auroc(results["id"].scores[name], results["full"].scores[name]) for name in results["id"].scores}
    assert set(NAMES) <= set(found)
    assert found["mahalanobis-blocks"] > 0.99 > found["max-probability"] + 0.05
    for name in ("knn", "mahalanobis", "relative-mahalanobis", "vim"):  # features know more than logits here
        assert found[name] > max(found["max-probability"], found["energy"]), name


# -- files -------------------------------------------------------------------------------------------------------------


def test_saved_and_loaded(model: PostHocModel, data: Any, images: Tensor, tmp_path: Path) -> None:
    model.scores["knn"] = build_posthoc("knn", neighbours=3, stored=40)
    model.fit(data, draws=3).save(tmp_path / "scores")
    again = PostHocModel.load(tmp_path / "scores", model.model)
    assert again.of == model.of and again.score == model.score and list(again.scores) == list(model.scores)
    assert all(again.scores[name].settings == score.settings for name, score in model.scores.items())
    left, right = model.predict(images, draws=3), again.predict(images, draws=3)
    assert all(torch.equal(left.own[name], right.own[name]) for name in left.own)
    model.save(tmp_path / "scores")  # replaces


def test_thresholds_are_saved_with_the_scores(model: PostHocModel, data: Any, images: Tensor, tmp_path: Path) -> None:
    triage = abnn.Triage.calibrate(model.fit(data, draws=3), data, draws=3)
    again = PostHocModel.load(model.save(tmp_path / "scores"), model.model)
    said = model.predict(images, draws=3)
    assert again.triage == model.triage == triage and triage.score == "energy"
    assert again.predict(images, draws=3).verdict == said.verdict == triage(said).verdict
    assert model.predict(images, draws=3, score="knn").triage is None


def test_blocks_by_name_are_remembered(small_net: nn.Module, data: Any, images: Tensor, tmp_path: Path) -> None:
    model = PostHocModel(Plain(small_net, images), ("mahalanobis-blocks",), at=("blocks.0", "blocks.2")).fit(data)
    model.save(tmp_path / "scores")
    again = PostHocModel.load(tmp_path / "scores", model.model)
    assert again.at == ["blocks.0", "blocks.2"]
    assert torch.equal(again.predict(images).score, model.predict(images).score)
    assert again.scores["mahalanobis-blocks"].state["means"].shape == (4, 3 * 2 * 8)


def test_unfitted_scores_can_be_saved(small_net: nn.Module, images: Tensor, tmp_path: Path) -> None:
    model = PostHocModel(Plain(small_net, images), ("knn",))
    again = PostHocModel.load(model.save(tmp_path / "scores"), model.model)
    with pytest.raises(NotFittedError, match="scores: knn learn"):
        again.predict(images)


def test_files_of_another_model_or_kind(small_net: nn.Module, data: Any, images: Tensor, tmp_path: Path) -> None:
    path = tmp_path / "scores"
    model = PostHocModel(Plain(small_net, images)).fit(data)
    model.save(path)
    with torch.no_grad():
        small_net.head.weight.add_(1)  # type: ignore[union-attr,operator]
    with pytest.raises(FileFormatError, match="other weights or layers.*fit the scores again"):
        PostHocModel.load(path, model.model)
    with pytest.raises(FileFormatError, match="is not a saved set of post-hoc scores"):
        PostHocModel.load(tmp_path, model.model)
    with pytest.raises(InputError, match="path: got .*is not a saved set of post-hoc scores"):
        model.save(tmp_path)

    description = json.loads((path / "posthoc.json").read_text())

    def load_with(**changes: Any) -> None:
        PostHocModel.load(alter(path, **{**description, **changes}), model.model)

    with pytest.raises(FileFormatError, match="is not the description of a saved set of post-hoc scores"):
        load_with(format="other")
    with pytest.raises(FileFormatError, match="written in format 4.*Update abnn"):
        load_with(version=4)
    triage = abnn.Triage(1.0, 2.0, 0.05, 0.01, "enrgy", 1, 0, 100).to_dict()
    with pytest.raises(FileFormatError, match="not complete or does not fit.*triage.score: got 'enrgy'"):
        load_with(triage=triage)
    with pytest.raises(FileFormatError, match="not complete or does not fit.*'enrgy'"):
        load_with(scores=[{"name": "enrgy", "settings": {}}])
    with pytest.raises(FileFormatError, match="scores.* is "):
        load_with(scores=[{"name": "energy"}])
    with torch.no_grad():
        small_net.head.weight.sub_(1)  # type: ignore[union-attr,operator]
    model = PostHocModel(Plain(small_net, images)).fit(data)
    description = json.loads((model.save(path) / "posthoc.json").read_text())
    with pytest.raises(FileFormatError, match="holds tensors of 'mahalanobis"):
        load_with(scores=[{"name": "energy", "settings": {}}])


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_predicting_before_fitting(small_net: nn.Module, images: Tensor) -> None:
    model = PostHocModel(Plain(small_net, images), ("energy", "knn", "vim"))
    with pytest.raises(NotFittedError, match=r"scores: knn, vim learn from training data; call fit\(train_loader\)"):
        model.predict(images)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (("energy", "knnn"), "scores: got 'knnn'.*Did you mean 'knn'"),
        ("energy", "scores: got 'energy'; accepted: a list"),
        ((), "scores: got \\(\\); accepted: a list"),
        (("energy", "gen", "energy"), "scores: got energy, gen, energy; accepted: each score once"),
    ],
)
def test_bad_scores(small_net: nn.Module, images: Tensor, scores: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        PostHocModel(Plain(small_net, images), scores)


def test_a_shown_score_that_is_not_there(small_net: nn.Module, images: Tensor) -> None:
    plain = Plain(small_net, images)
    with pytest.raises(InputError, match="score: got 'knn'; accepted: .*energy"):
        PostHocModel(plain, ("energy",), score="knn")
    model = PostHocModel(plain, ("energy",))
    with pytest.raises(InputError, match="score: got 'knn'"):
        model.predict(images, score="knn")
    with pytest.raises(NotFittedError, match="'combined' needs what abnn.fit"):
        model.predict(images, score="combined")
    assert model.predict(images, score="entropy").default == "entropy"


def test_scores_that_a_network_cannot_give(images: Tensor) -> None:
    convolutions = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    with pytest.raises(InputError, match="scores: got 'knn' for a network with no linear layer.*do not need 'last'"):
        PostHocModel(Plain(convolutions, images), ("energy", "knn"))
    x = torch.randn(4, 6, generator=generator(1))
    with pytest.raises(
        InputError, match="scores: got 'vim' for a network with a last linear layer .*do not need 'head'"
    ):
        PostHocModel(Plain(nn.Sequential(mlp(), nn.LogSoftmax(1)), x), ("vim",))
    with pytest.raises(InputError, match="do not need 'blocks'"):
        PostHocModel(Plain(nn.Linear(6, 3), x), ("mahalanobis-blocks",))


def test_bad_inputs(small_net: nn.Module, images: Tensor) -> None:
    model = PostHocModel(Plain(small_net, images), ("energy",))
    with pytest.raises(InputError, match="x: got NaN"):
        model.predict(images * float("nan"))
    with pytest.raises(InputError, match="x: got shape"):
        model.predict(images[0])
    assert (model.input_shape, model.input_dtype, model.classes) == ((1, 12, 12), torch.float32, 4)


def test_fresh_draws(attached: Attached, data: Any, images: Tensor) -> None:
    """Without a seed, features and prediction still belong to the same draws."""
    model = PostHocModel(attached, ("energy", "max-logit"))
    first, second = (model.predict(images, draws=2, seed=None) for _ in range(2))
    assert not torch.equal(first.own["energy"], second.own["energy"])
    # ln max_k p_k = max_k z_k - logsumexp(z), for the logits z of the averaged prediction.
    torch.testing.assert_close(
        first.probs.amax(1).log(), first.own["energy"] - first.own["max-logit"], rtol=1e-4, atol=1e-5
    )


def test_a_triage_can_be_calibrated_on_a_post_hoc_score(small_net: nn.Module, data: Any, images: Tensor) -> None:
    model = PostHocModel(Plain(small_net, images), ("mahalanobis-blocks",)).fit(data)
    triage = abnn.Triage.calibrate(model, data)  # type: ignore[arg-type]
    assert triage.score == "mahalanobis-blocks" and triage.notice <= triage.reject


@pytest.mark.parametrize("method", ["threshold", "abnn"])
def test_on_a_trained_method(small_net: nn.Module, attached: Attached, data: Any, images: Tensor, method: str) -> None:
    """What a method says stays; post-hoc scores of its network come with it."""
    abnn.fit(attached, data, epochs=0, progress=False)
    network = attached if method == "abnn" else small_net
    trained = Trained(make_method(method), network, images, 4)
    scores = ("energy", "mahalanobis-blocks")
    prediction = PostHocModel(trained, scores).fit(data, draws=3).predict(images, draws=3)  # type: ignore[arg-type]
    assert torch.equal(prediction.samples, trained.predict(images, draws=3).samples)
    direct = PostHocModel(attached if method == "abnn" else Plain(small_net, images), scores)
    expected = direct.fit(data, draws=3).predict(images, draws=3)
    assert all(torch.equal(prediction.own[name], expected.own[name]) for name in scores)


def test_threads_get_what_one_after_another_gets(small_net: nn.Module, data: Any) -> None:
    """Every pass notes features of its own; the network is in eval mode, as it is in use."""
    small_net.eval()
    parts = [torch.randn(6, 1, 12, 12, generator=generator(seed)) for seed in range(24)]
    names = ("energy", "mahalanobis", "mahalanobis-blocks", "vim", "adascale")
    model = PostHocModel(Plain(small_net, parts[0]), names).fit(data)
    expected = [model.predict(part).own for part in parts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda part: model.predict(part).own, parts))
    for left, right in zip(together, expected):
        assert all(torch.equal(left[name], right[name]) for name in names)


def test_scores_of_networks_with_several_outputs_say_what_they_said(tmp_path: Path) -> None:
    """Those that were saved before blocks and the last layer were those of the first output."""
    network, x = TwoHeads("one").eval(), torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    plain, names = Plain(network, x[:1]), ["mahalanobis", "mahalanobis-blocks"]

    def saved(name: str) -> tuple[PostHocModel, Path]:
        model = PostHocModel(plain, names).fit([(x, torch.arange(40) % 3)])
        return model, model.save(tmp_path / name)

    with of_any_output():
        before, path = saved("before")
    again = PostHocModel.load(path, plain).save(tmp_path / "again")
    today, newer = saved("today")
    said = {name: model.predict(x).own for name, model in (("before", before), ("today", today))}
    for name in names:
        assert not torch.allclose(said["before"][name], said["today"][name])
        for folder, when in ((path, "before"), (again, "before"), (newer, "today")):
            assert torch.equal(PostHocModel.load(folder, plain).predict(x).own[name], said[when][name])
