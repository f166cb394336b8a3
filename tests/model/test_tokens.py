"""Attachments on tokens: fit, calibrate and predict with whole numbers as inputs."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.baselines import TrainConfig, load_trained, train_method
from abnn.baselines.posthoc import PostHocModel
from abnn.config import FitConfig
from abnn.predict import Plain
from abnn.triage import Triage
from tests.conftest import alter, randomise_attachments, with_score

WORDS, LENGTH = 30, 12


class Classifier(nn.Module):
    """Reads which third of the vocabulary most words come from."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


def sentences(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return TensorDataset(y[:, None] * 10 + torch.randint(10, (count, LENGTH), generator=generator), y)


def trained() -> Classifier:
    torch.manual_seed(0)
    network, (x, y) = Classifier(), sentences(120, 0).tensors
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(30):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval()


def test_default_fit_and_calibration_tell_scrambled_sentences_from_good_ones() -> None:
    network, config = trained(), FitConfig(accelerator="cpu")
    known, held_out, fresh = (sentences(120, seed) for seed in (0, 1, 2))
    model = abnn.attach(network, known.tensors[0][:1])
    history = abnn.fit(model, DataLoader(known, 30, shuffle=True), epochs=3, progress=False, config=config)
    assert history.last["outliers"] > 0
    triage = Triage.calibrate(model, DataLoader(held_out, 30), draws=3)
    good = model.predict(fresh.tensors[0], draws=3)
    inputs, labels = fresh.tensors
    made = abnn.outliers.make_outliers("auto")(inputs, labels, torch.Generator().manual_seed(3), severity=1.0)
    bad = model.predict(made.x, draws=3)
    assert (good.label == fresh.tensors[1]).float().mean() > 0.9
    # At most 5 % of good inputs are promised not to be accepted; of 120, 15 % is six deviations away.
    accepted = [triage(each).verdict.count("accept") / 120 for each in (good, bad)]
    assert accepted[0] > 0.85 and accepted[1] < 0.5


def test_methods_that_know_only_outside_get_tokens_without_content() -> None:
    config = TrainConfig(accelerator="cpu")
    model = train_method("oe", Classifier(), DataLoader(sentences(60, 0), 30), 1, progress=False, config=config)
    assert model.history["train"].last["outliers"] > 0


class Padded(Classifier):
    """Sentences may end in padding; its encoder is torch's, with all of its shortcuts."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers)

    def forward(self, x: Tensor) -> Tensor:
        words = (x > 0)[..., None]
        encoded = self.encoder(self.embed(x), src_key_padding_mask=x == 0)
        return self.head((encoded * words).sum(1) / words.sum(1).clamp_min(1))


@pytest.mark.parametrize(("layers", "at"), [(2, None), (1, None), (2, "encoder.layers.*.linear1")])
def test_shortcuts_of_transformers_pass_by_no_block(layers: int, at: str | None) -> None:
    torch.manual_seed(0)
    x = sentences(6, 0).tensors[0].clamp_min(1)
    x[::2, 7:] = 0
    network = Padded(layers).eval()
    options = [vars(part).copy() for part in network.encoder.modules()]
    model = abnn.attach(network, x[:1], at=at)
    assert [vars(part) for part in network.encoder.modules()] == options
    with torch.no_grad():
        torch.testing.assert_close(model.predict(x).samples[0], network(x).softmax(1))
        for name, parameter in model.attachment_parameters():
            if name.endswith("up.weight_mean"):
                parameter.normal_()
        without_gradients = model(x)
    assert all(".encoder" in f".{name}" for name in model.block_names)
    assert not torch.allclose(without_gradients, network(x), atol=1e-3)
    torch.testing.assert_close(without_gradients, model(x))  # with gradients there are no shortcuts
    plain, attached = model.predict(x).samples
    assert not torch.allclose(plain, attached, atol=1e-3)


def padded_model() -> tuple[abnn.Attached, Tensor]:
    """A model of which nothing but the embeddings says what pads, and sentences."""
    torch.manual_seed(0)
    x, y = sentences(60, 0).tensors
    x = x.clamp_min(1)
    x[::2, 7:] = 0
    model = with_score(abnn.attach(Padded(2).eval(), x[:1]), x, y)
    randomise_attachments(model)
    return model, x


def test_a_sentence_has_one_score_however_far_it_is_padded() -> None:
    model, x = padded_model()
    one, other = model.predict(x), model.predict(nn.functional.pad(x, (0, 5)))
    torch.testing.assert_close(other.score, one.score, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(other.samples, one.samples)


@pytest.mark.parametrize("of", ["model", "backbone", None])
def test_post_hoc_scores_do_not_count_padding(of: str | None, tmp_path: Path) -> None:
    """Those that were fitted when it counted still say what they said."""
    model, x = padded_model()
    network = Plain(model.backbone, x[:1]) if of is None else model
    batches, longer = [(x, torch.arange(60) % 3)], nn.functional.pad(x, (0, 5))
    now, before = (PostHocModel(network, ["mahalanobis-blocks", "energy"], of or "model") for _ in range(2))
    before.reader.padding = None
    scores = []
    for kind, scorer in (("now", now), ("before", before)):
        path = scorer.fit(batches).save(tmp_path / kind)
        scores.append(scorer.predict(x).score)
        assert torch.equal(PostHocModel.load(path, network).predict(x).score, scores[-1])
    torch.testing.assert_close(now.predict(longer).score, scores[0], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before.predict(longer).score, scores[1], atol=0.1)


def test_models_in_which_padding_counted_say_what_they_said(tmp_path: Path) -> None:
    """Those that were saved before padding was told by embeddings: their features and thresholds are with padding."""
    model, x = padded_model()
    today = model.predict(x).score
    path = model.save(tmp_path / "today")
    assert torch.equal(abnn.load(path, model.backbone).predict(x).score, today)
    then = copy.deepcopy(model)
    then.state.padding = None
    before = then.predict(x).score
    older = abnn.load(alter(path, skips_padding=...), model.backbone)
    assert torch.equal(older.predict(x).score, before) and not torch.allclose(before, today, atol=0.1)
    again = abnn.load(older.save(tmp_path / "again"), model.backbone)
    assert torch.equal(again.predict(x).score, before)
    assert torch.equal(copy.deepcopy(again).predict(x).score, before)


def test_trained_methods_keep_how_padding_counts(tmp_path: Path) -> None:
    config, x = TrainConfig(accelerator="cpu"), padded_model()[1]
    data = DataLoader(TensorDataset(x, torch.arange(60) % 3), 30)
    method = train_method("abnn", Padded(2), data, 1, progress=False, config=config)
    path = method.save(tmp_path / "method")
    for changes, padding in (({}, 0), ({"skips_padding": ...}, None)):
        loaded = load_trained(alter(path, **changes), Padded(2))
        assert isinstance(loaded.network, abnn.Attached) and loaded.network.state.padding == padding
