"""The learnt score: what it learns from, where there is little to learn from, and that it repeats."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.model.features import direction
from abnn.scores import combined as scores
from abnn.scores.combined import MEMBERS, member_scores
from abnn.train.combine import auroc, learn_score
from abnn.train.combine.members import fit_members
from abnn.train.hold_out import hold_out
from tests.conftest import destroyed_term, mlp, trained
from tests.train.test_fit import QUIET, attached, data, equal, loader, quiet, values

LEARNT = ("combined.", "closed_form.")


def learnt(model: abnn.Attached) -> dict[str, Tensor]:
    return {name: value for name, value in values(model).items() if name.startswith(LEARNT)}


def check(model: abnn.Attached, x: Tensor) -> None:
    """Everything is a number, and the score is standardised on ordinary inputs but for what always counts."""
    assert model.is_judge
    assert all(value.isfinite().all() for value in learnt(model).values())
    prediction = model.predict(x)
    assert prediction.default == "combined" and prediction.score.isfinite().all()
    assert prediction.parts is not None and list(prediction.parts) == model.combined.names


class Words(nn.Module):
    """Reads sentences of 5 of 20 words."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.words, self.body = nn.Embedding(20, 8), mlp(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.words(x).mean(1))


def table(classes: int, count: int = 150) -> tuple[Tensor, Tensor]:
    """Gaussian clusters."""
    g = torch.Generator().manual_seed(classes)
    y = torch.arange(count) % classes
    return 3 * torch.randn(classes, 6, generator=g)[y] + torch.randn(count, 6, generator=g), y


def case(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and its data."""
    torch.manual_seed(0)
    if name == "tokens":
        x = torch.randint(20, (150, 5))
        y = x[:, 0] % 3
        return trained(Words(), x, y), x, y
    classes = 2 if name == "2 classes" else 4
    x, y = table(classes)
    if name == "constant":
        return mlp(classes=classes).eval(), torch.ones_like(x), y
    network = trained(mlp(classes=classes), x, y)
    if name == "one class absent":
        return network, x[y > 0], y[y > 0]
    if name == "one class alone":
        return network, x[y == 0].repeat(4, 1), y[y == 0].repeat(4)
    if name == "all right":
        return network, x, network(x).argmax(1)
    if name == "all wrong":
        return network, x, (network(x).argmax(1) + 1) % classes
    return network, x, y


CASES = [
    "2 classes",
    "4 classes",
    "tokens",
    "one class absent",
    "one class alone",
    "constant",
    "all right",
    "all wrong",
]


@pytest.mark.parametrize(
    ("name", "outliers", "share"),
    [
        *((name, "preset", 0.2) for name in CASES),
        *((name, None, 0.0) for name in CASES),
        *((name, outliers, share) for name in CASES[:2] for outliers, share in (("preset", 0.0), (None, 0.2))),
    ],
)
def test_every_kind_of_data(name: str, outliers: Any, share: float) -> None:
    network, x, y = case(name)
    model = abnn.attach(network, x[:1])
    batches = DataLoader(TensorDataset(x, y), 50, shuffle=True)
    assert abnn.fit(model, batches, **quiet(outliers=outliers, epochs=0, hold_out=share)).rows == []
    check(model, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x), network(x))  # nothing was trained


def test_without_pairs_the_small_networks_say_nothing() -> None:
    """Two classes, no outliers, no error: nothing is to be more uncertain than anything else, but what always counts does."""
    network, x, _ = case("2 classes")
    y = network(x).argmax(1)
    model = abnn.attach(network, x[:1])
    abnn.fit(model, [(x, y)], outliers=None, epochs=0, **QUIET)
    check(model, x)
    combined = model.combined
    assert not combined.members(torch.randn(9, len(combined.names))).any()
    prediction = model.predict(x)
    assert prediction.parts is not None
    parts = torch.stack([*prediction.parts.values()], 1)
    inside = prediction.score - parts @ combined.anchor - destroyed_term(combined, parts)
    assert (inside > -1e-4).all() and inside.median() < 1e-4  # T is zero for most, and never negative


@pytest.mark.no_cover
def test_a_score_learns_to_order_the_groups(full_learning: None) -> None:
    """Destroyed inputs above ordinary ones, and classes that the network was not taught above those that it was."""
    torch.manual_seed(0)
    x, y = table(6, 600)
    seen = y < 5
    network = trained(mlp(classes=5, width=32), x[seen], y[seen])
    model = abnn.attach(network, x[:1])
    abnn.fit(model, DataLoader(TensorDataset(x[seen], y[seen]), 50, shuffle=True), epochs=0, **QUIET)
    ordinary, unknown = model.predict(x[seen]).score, model.predict(x[~seen]).score
    noise = model.predict(20 * torch.randn(200, 6)).score
    assert auroc(ordinary, noise) > 0.99
    assert auroc(ordinary, unknown) > 0.9


@pytest.mark.parametrize("overlap", [0.0, 1.0])
def test_changed_inputs_that_are_misread_are_more_uncertain(overlap: float, full_learning: None) -> None:
    """Two parts, noise and one that tells misread inputs; changed ones lie below near ones all the same."""
    names = ["noise", "odds"]
    combined = SimpleNamespace(
        names=names, member_parts=2, linear=torch.zeros(MEMBERS, 2, 1), inner=torch.zeros(MEMBERS, 2, 4), offset=torch.zeros(MEMBERS, 1, 4),
        outer=torch.zeros(MEMBERS, 4, 1),
    )  # fmt: skip
    random = torch.Generator().manual_seed(0)
    middle = {"ordinary": -2.0, "readable": -1.0, "misread": 1.0, "near": 3.0, "destroyed": 5.0}
    groups = {name: torch.randn(200, 2, generator=random) * 0.3 for name in middle}
    for name, value in middle.items():
        groups[name][:, 1] += value
    groups["changed"] = torch.cat([groups["readable"], groups["misread"]])
    fit_members(combined, groups, overlap, 500, random)
    said = {
        name: member_scores(rows, combined.linear, combined.inner, combined.offset, combined.outer).mean(0)
        for name, rows in groups.items()
    }
    assert auroc(said["readable"], said["misread"]) > 0.95
    assert auroc(said["misread"], said["near"]) > 0.95


def test_of_tables_doubt_counts_and_sureness_excuses_nothing() -> None:
    """How far odds are above the usual counts wholly in D; below it they count nothing there. Of words they do not count there."""
    for name, counts in (("4 classes", True), ("tokens", False)):
        network, x, y = case(name)
        model = abnn.attach(network, x[:1])
        abnn.fit(model, [(x, y)], outliers=None, epochs=0, **QUIET)
        names = model.combined.names
        rows = torch.zeros(3, len(names))
        rows[:, names.index("odds")] = torch.tensor([-50.0, 0.0, 3.0])
        assert destroyed_term(model.combined, rows).tolist() == [0.0, 0.0, 3.0 if counts else 0.0]


@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_an_unfamiliar_direction_counts_where_data_are_new(overlap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself, beyond what ordinary inputs and readable changed ones have; no small network sees it."""
    monkeypatch.setattr("abnn.train.combine.learn.training_overlap", lambda combined, groups: overlap)
    x, y = table(4, 1000)  # of which enough are held out
    model = abnn.attach(trained(mlp(6, 4), x, y), x[:1])
    abnn.fit(model, DataLoader(TensorDataset(x, y), 16), epochs=0, **QUIET)
    combined, place = model.combined, len(model.combined.names) - 1
    assert combined.names[place] == "direction" and combined.member_parts == place
    assert not combined.linear[:, place].any() and not combined.inner[:, place].any() and combined.linear[:, 0].any()
    limit = float(combined.readable[place])
    rows = torch.zeros(2, len(combined.names))
    rows[1, place] = 1e3
    added = destroyed_term(combined, rows)[1]
    if overlap == 1:
        assert limit == scores.NEVER and added == 0
    else:
        torch.testing.assert_close(added, torch.tensor(1e3 - limit))
        said = model.predict(x).parts["direction"]
        assert (said > limit).float().mean() < 0.15 * (1 - overlap) + 0.05


@pytest.mark.parametrize("width", [1, 2])
def test_one_feature_has_no_direction(width: int) -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4))
    assert ("direction" in abnn.attach(network.eval(), torch.zeros(1, 6)).combined.names) == (width > 1)


def test_directions_do_not_know_how_long_features_are() -> None:
    x, y = table(4)  # of which too few are held out for them to count
    model = abnn.attach(trained(mlp(6, 4), x, y), x[:1])
    abnn.fit(model, DataLoader(TensorDataset(x, y), 16), epochs=0, **QUIET)
    last = torch.rand(9, model.__dict__["readout"].block.in_features) + 0.1
    of = model.combined.direction
    assert model.combined.readable[-1] == scores.NEVER
    torch.testing.assert_close(of(direction(7 * last)), of(direction(last)), rtol=1e-4, atol=1e-4)
    centred = last / last.norm(dim=1, keepdim=True) - of.mean
    inverse = of.whitening.T @ of.whitening
    expected = ((centred @ inverse) * centred).sum(1) / last.shape[1]
    torch.testing.assert_close(of(direction(last)).exp(), expected, rtol=1e-3, atol=1e-4)
    assert of(direction(torch.full((1, last.shape[1]), torch.nan))).isfinite().all()


def test_a_seed_gives_the_same_bits_and_another_does_not() -> None:
    found: list[dict[str, Tensor]] = []
    for seed in (1, 1, 2):
        model = attached()
        torch.manual_seed(len(found))  # the global state has no say
        abnn.fit(model, loader(count=120), epochs=0, seed=seed, **QUIET)
        found.append(learnt(model))
    assert equal(found[0], found[1]) and not equal(found[0], found[2])


def test_no_training_is_the_score_alone() -> None:
    """epochs=0 learns what learn_score() learns on the split of the seed, and changes nothing else."""
    model, same = attached(), attached()
    start = values(model)
    history = abnn.fit(model, loader(count=120), outliers=None, epochs=0, seed=3, **QUIET)
    assert history.rows == [] and not model.training
    assert all(torch.equal(value, start[name]) for name, value in values(model).items() if not name.startswith(LEARNT))
    rest, out = hold_out(loader(count=120, shuffle=False), 0.2, 3)
    learn_score(same, lambda: rest, out, None, Alone(), 3)
    for name, value in learnt(same).items():  # the order of the data is another, so sums are rounded in another way
        if name.startswith("closed_form."):
            torch.testing.assert_close(learnt(model)[name], value, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(model.combined.centre, same.combined.centre, rtol=1e-3, atol=1e-3)


class Alone:
    world_size = 1


def test_the_closed_form_is_of_training_data_and_the_score_of_other() -> None:
    """A class that is only held out is far from what the closed form knows, and usual for the score."""
    x, y = table(4, 200)
    torch.manual_seed(0)
    model = abnn.attach(mlp(classes=4).eval(), x[:1])
    learn_score(model, lambda: [(x[y < 3], y[y < 3])], [(x[y == 3], y[y == 3])], None, Alone(), 0)
    prediction = model.predict(x)
    assert prediction.parts is not None
    far = prediction.parts["distance at input"]
    assert far[y == 3].median() == pytest.approx(0, abs=0.05) and far[y < 3].median() < -1


def test_little_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training data passes once, batch by batch, and no more of it than is needed."""
    monkeypatch.setattr("abnn.train.combine.learn.MOMENTS", 64)
    x, y = table(4, 320)
    alive: list[int] = []

    def batches() -> Any:
        for index in range(10):
            alive.append(index)
            yield x[32 * index : 32 * index + 32], y[32 * index : 32 * index + 32]

    model = abnn.attach(mlp(classes=4).eval(), x[:1])
    learn_score(model, batches, [(x, y)], None, Alone(), 0)
    assert alive == [0, 1]


def test_auroc_is_that_of_scikit_learn() -> None:
    less, more = torch.randint(9, (50,)).float(), torch.randint(3, 12, (70,)).float()
    expected = roc_auc_score([0] * 50 + [1] * 70, torch.cat([less, more]))
    assert auroc(less, more) == pytest.approx(expected)


def test_members_differ() -> None:
    model = attached()
    abnn.fit(model, loader(count=120), epochs=0, **QUIET)
    linear = model.combined.linear
    assert len(linear) == MEMBERS and all(not torch.equal(linear[0], other) for other in linear[1:])


# -- what a fit cannot do ----------------------------------------------------------------------------------------------


@pytest.mark.no_cover
def test_a_fit_cannot_destroy() -> None:
    """Neither a rate of 1.0 nor many epochs with noise cost the mean prediction more than a point of accuracy."""
    model = attached()
    x, y = data(400)
    with torch.no_grad():
        plain = (model.backbone(x).argmax(1) == y).float().mean()
    abnn.fit(model, loader(batch=40, count=120), outliers="noise", lr=1.0, epochs=50, **QUIET)
    with torch.no_grad():
        assert (model.backbone(x).argmax(1) == y).float().mean() == plain > 0.9
    assert (model.predict(x).label == y).float().mean() >= plain - 0.01


@cache
def cancer() -> tuple[abnn.Attached, Tensor]:
    """A small network that tells benign tumours from malignant ones, fitted and calibrated, and the test data."""
    x, y = (torch.tensor(part) for part in load_breast_cancer(return_X_y=True))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order].float(), y[order]
    x = (x - x[:300].mean(0)) / x[:300].std(0)
    torch.manual_seed(0)
    network = trained(mlp(30, 2, 32), x[:300], y[:300])
    model = abnn.attach(network, x[:1])
    abnn.fit(model, DataLoader(TensorDataset(x[:300], y[:300]), 50, shuffle=True), epochs=5, **QUIET)
    abnn.calibrate(model, [(x[300:430], y[300:430])])
    return model, x[430:]


@pytest.mark.no_cover
def test_tables_far_away_are_not_accepted(full_learning: None) -> None:
    model, x = cancer()
    before = model.predict(x)
    assert before.verdict.count("accept") > 0.8 * len(x)
    last = before.score.mean()
    for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000):
        moved = model.predict(x + step)
        assert moved.score.isfinite().all() and moved.score.mean() > last, step
        last = moved.score.mean()
        if step >= 4:
            assert "accept" not in moved.verdict, step


def test_far_away_in_every_direction(full_learning: None) -> None:
    model, x = cancer()
    for seed in range(3):
        direction = torch.randn(30, generator=torch.Generator().manual_seed(seed)).sign()
        assert "accept" not in model.predict(x + 4 * direction).verdict


# -- killed and resumed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [96, 120])
@pytest.mark.no_cover
def test_a_resumed_fit_learns_the_same_score(tmp_path: Path, count: int) -> None:
    """With held-out data and without: stopped in the middle of the second epoch, and after the last one."""
    steps: list[float] = []

    def stop(progress: float) -> float:
        steps.append(progress)
        if len(steps) == 9:
            raise KeyboardInterrupt
        return 1.0

    file = tmp_path / "fit.safetensors"
    settings = quiet(epochs=2, seed=4, checkpoint=file, checkpoint_every=1, schedule=stop)
    whole, resumed, finished = attached(), attached(), attached()
    abnn.fit(whole, loader(count=count), **quiet(epochs=2, seed=4, schedule="constant"))
    with pytest.raises(KeyboardInterrupt):
        abnn.fit(attached(), loader(count=count), **settings)
    abnn.fit(resumed, loader(count=count), **settings)
    abnn.fit(finished, loader(count=count), **settings)
    assert any(name.startswith("combined.") for name in values(whole))
    assert equal(values(whole), values(resumed)) and equal(values(whole), values(finished))
