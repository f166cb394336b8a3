"""Regression: Gaussian predictive distributions, intervals that hold, and verdicts by width and distance."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.config import FitConfig
from abnn.decisions import Costs
from abnn.errors import AbnnWarning, AttachError, InputError, NotFittedError
from abnn.tasks import Regression
from abnn.tasks.spread import log_variance
from abnn.triage.intervals import Intervals, Width
from tests.conftest import generator


class Net(nn.Module):
    """A small network for targets around 40 with a spread of about 10; ``form``: of its output."""

    def __init__(self, form: str = "column") -> None:
        super().__init__()
        outputs = {"flat": 1, "column": 1, "two": 2, "variance": 2}[form]
        self.form, self.body = form, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU())
        self.last = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        z = self.last(self.body(x))
        if self.form == "variance":
            return torch.cat([40 + 10 * z[:, :1], z[:, 1:] + 4], dim=1)
        return (40 + 10 * z)[:, 0] if self.form == "flat" else 40 + 10 * z


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs, and targets that grow with the first feature, and their noise with them, from 1 to 5."""
    random = generator(seed)
    x = torch.randn(count, 4, generator=random)
    noise = 1 + 4 * torch.sigmoid(3 * x[:, 0])
    return x, 40 + 6 * x[:, 0] + 4 * (x[:, 2] * 2).sin() + noise * torch.randn(count, generator=random)


def targets_of(form: str, y: Tensor) -> Tensor:
    return torch.stack([y, 80 - y], dim=1) if form == "two" else y


def train(form: str) -> Net:
    torch.manual_seed(0)
    net, (x, y) = Net(form), draw(600, 0)
    goal = targets_of(form, y).reshape(600, -1)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(150):
        rows = torch.arange(step * 64, step * 64 + 64) % 600
        z = net(x[rows]).reshape(64, -1)
        if form == "variance":
            loss = (z[:, 1] + (z[:, 0] - y[rows]).square() / z[:, 1].exp()).mean()
        else:
            loss = (z - goal[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def batches(form: str, count: int, seed: int, size: int = 100) -> list[tuple[Tensor, Tensor]]:
    x, y = draw(count, seed)
    return list(zip(x.split(size), targets_of(form, y).split(size)))


@pytest.fixture(scope="module")
def models() -> dict[str, abnn.Attached]:
    """One of each form, fitted without training and calibrated."""
    made = {}
    for form in ("flat", "column", "two", "variance"):
        task: Any = Regression(variance=True) if form == "variance" else "regression"
        model = abnn.attach(train(form), torch.zeros(1, 4), task=task)
        abnn.fit(model, batches(form, 600, 0), epochs=0, progress=False)
        abnn.calibrate(model, batches(form, 400, 1), progress=False)
        made[form] = model
    return made


@pytest.mark.parametrize("form", ["flat", "column", "two", "variance"])
def test_intervals_hold_and_noise_is_found(models: dict[str, abnn.Attached], form: str) -> None:
    x, y = draw(2000, 2)
    p = models[form].predict(x)
    goal = targets_of(form, y).reshape(2000, -1)
    assert p.mean.shape == p.std.shape == goal.shape
    torch.testing.assert_close(p.std.square(), p.aleatoric.square() + p.epistemic.square())
    for coverage in (0.5, 0.9):
        low, high = p.interval(coverage)
        # 400 calibration inputs: the coverage given them has a standard deviation of at most 0.025
        assert float(((goal >= low) & (goal <= high)).float().mean()) == pytest.approx(coverage, abs=0.075)
    quiet, loud = p.aleatoric[x[:, 0] < -1].mean(), p.aleatoric[x[:, 0] > 1].mean()
    assert loud > 1.8 * quiet  # truly about 1.2 and 4.8
    ratio = ((goal - p.mean) / p.std).square().mean()
    assert 0.8 < ratio < 1.25


@pytest.mark.parametrize("form", ["flat", "two", "variance"])
def test_moved_inputs_are_wider_and_not_accepted(models: dict[str, abnn.Attached], form: str) -> None:
    x, _ = draw(200, 3)
    near, moved, far = (models[form].predict(x + shift) for shift in (0.0, 4.0, 40.0))
    assert moved.epistemic.mean() > 3 * near.epistemic.mean() and far.epistemic.mean() > 3 * moved.epistemic.mean()
    assert near.verdict.count("accept") >= 180 and moved.verdict.count("accept") <= 10
    assert far.verdict.count("reject") == 200 and bool((far.score > moved.score).all())


@pytest.mark.parametrize("form", ["flat", "column", "two", "variance"])
def test_saved_models_say_the_same_and_detaching_changes_nothing(
    models: dict[str, abnn.Attached], form: str, tmp_path: Path
) -> None:
    model, (x, _) = models[form], draw(20, 4)
    p = model.predict(x)
    model.save(tmp_path / "model")
    again = abnn.load(tmp_path / "model", copy.deepcopy(model.backbone))
    q = again.predict(x)
    for name in ("mean", "std", "aleatoric", "epistemic", "score"):
        assert torch.equal(getattr(p, name), getattr(q, name)), name
    assert p.verdict == q.verdict and all(map(torch.equal, p.interval(0.8), q.interval(0.8)))
    assert again.task.name == "regression" and again.task.variance == (form == "variance")
    before = model.backbone(x)
    assert model(x).shape == before.shape
    assert torch.equal(abnn.detach(again)(x), before)


def test_a_table_has_intervals(models: dict[str, abnn.Attached]) -> None:
    x, _ = draw(5, 4)
    one, two = models["flat"].predict(x).to_pandas(), models["two"].predict(x).to_pandas(["up", "down"])
    assert list(one) == ["mean", "score", "verdict", "std", "aleatoric", "epistemic", "low", "high"]
    assert "mean(up)" in two and "high(down)" in two and len(two) == 5
    assert bool((one["low"] < one["mean"]).all())


def test_predictions_in_parts_and_by_loader_are_equal(models: dict[str, abnn.Attached]) -> None:
    model, (x, _) = models["two"], draw(50, 5)
    whole, parts = model.predict(x), model.predict([(x[:20], None), (x[20:], None)], progress=False)
    torch.testing.assert_close(whole.std, parts.std)
    torch.testing.assert_close(whole.score, parts.score)
    drawn = model.predict(x, draws=7, memory_limit=20_000)
    torch.testing.assert_close(drawn.epistemic, model.predict(x, draws=7).epistemic)
    assert drawn.samples.shape == (8, 50, 2)


def test_training_keeps_what_the_network_knows() -> None:
    net = train("column")
    model = abnn.attach(net, torch.zeros(1, 4), task="regression")
    history = abnn.fit(model, batches("column", 600, 0), epochs=15, progress=False)
    assert history.rows[-1]["outliers"] < history.rows[0]["outliers"]
    x, y = draw(1000, 6)
    p = model.predict(x)
    plain, both = ((each[:, 0] - y).square() for each in (p.plain, p.mean))
    assert float(both.mean()) < 1.03 * float(plain.mean())
    moved = model.predict(x + 4)
    assert moved.std.mean() > 2 * p.std.mean()


def test_the_loss_follows_its_formula() -> None:
    model = abnn.attach(train("flat"), torch.zeros(1, 4), task="regression")
    x, y = draw(32, 7)
    value = abnn.loss(model, x, y, outliers=None)
    z, goal = ((each - y.mean()) / y.std(correction=0) for each in (model.backbone(x), y))
    error = (z - goal).square().mean()
    torch.testing.assert_close(
        value, 0.5 * error / error.detach()
    )  # attachments start at zero: half of the loss is zero
    value.backward()
    assert all(parameter.grad is not None for _, parameter in model.attachment_parameters())


def test_before_a_fit_there_are_means_but_no_widths() -> None:
    net = train("flat")
    model = abnn.attach(net, torch.zeros(1, 4), task="regression")
    p = model.predict(torch.zeros(3, 4))
    torch.testing.assert_close(p.mean[:, 0], net(torch.zeros(3, 4)))
    assert p.score.shape == (3,) and list(p.to_pandas()) == ["mean", "score"]
    with pytest.raises(NotFittedError, match="std: this model knows no widths yet"):
        _ = p.std


def test_intervals_say_where_inputs_are_too_few_for_them() -> None:
    for inputs in (1, 9, 19, 20):
        most, width = inputs / (inputs + 1), Width(0.0, 1.0, 0.0, 1.0, (), tuple(map(float, range(inputs))), inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Intervals((width,)).quantiles(most) == [inputs - 1.0]
        with pytest.warns(AbnnWarning, match=f"coverage: got .* with {inputs} calibration inputs; accepted: at most 0"):
            assert Intervals((width, width)).quantiles(most + 1e-3) == [inputs - 1.0] * 2


@pytest.mark.parametrize("inputs", [1, 30, 2999])
def test_the_coverage_that_is_said_to_be_possible_is(inputs: int) -> None:
    intervals = Intervals((Width(0.0, 1.0, 0.0, 1.0, (), tuple(map(float, range(inputs))), inputs),))
    with pytest.warns(AbnnWarning) as record:
        intervals.quantiles(0.9999)
    most = float(str(record[0].message).partition("at most ")[2].split()[0])
    assert inputs / (inputs + 1) - 1e-4 < most < 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert intervals.quantiles(most) == [inputs - 1.0]


def test_classes_are_not_asked_of_numbers(models: dict[str, abnn.Attached]) -> None:
    p = models["flat"].predict(torch.zeros(3, 4))
    for name in ("label", "probs", "stated"):
        with pytest.raises(InputError, match=f"{name}: got the prediction of a regression"):
            getattr(p, name)
    with pytest.raises(InputError, match="score: got 'entropy'"):
        models["flat"].predict(torch.zeros(3, 4), score="entropy")
    with pytest.raises(InputError, match="coverage: got 1.5"):
        p.interval(1.5)
    with pytest.raises(InputError, match="per_class: got True"):
        abnn.calibrate(models["flat"], batches("flat", 100, 1), abnn.TriageConfig(per_class=True), progress=False)


@pytest.mark.parametrize(
    ("form", "y", "message"),
    [
        ("flat", torch.full((8,), float("nan")), "NaN or infinite targets in rows 0, 1, .* of the batch"),
        ("flat", torch.zeros(8, 2), r"targets of shape \(8, 2\) for 8 inputs"),
        ("flat", torch.zeros(7), r"targets of shape \(7,\) for 8 inputs"),
        ("flat", torch.zeros(8, dtype=torch.bool), "targets of type torch.bool"),
        ("two", torch.zeros(8), r"targets of shape \(8,\) for 8 inputs"),
    ],
)
def test_targets_that_do_not_fit_are_named(
    models: dict[str, abnn.Attached], form: str, y: Tensor, message: str
) -> None:
    model = models[form]
    before, triage = {name: value.clone() for name, value in model.state_dict().items()}, model.triage
    for use in (abnn.fit, abnn.calibrate):
        with pytest.raises(InputError, match=message):
            use(model, [(torch.zeros(8, 4), y)], progress=False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.triage is triage


def test_outputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(AttachError, match=r"outputs of shape \(1, 3\).*shape \(1, 2 D\)"):
        abnn.attach(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)), torch.zeros(1, 4), task=Regression(variance=True))
    with pytest.raises(AttachError, match="bounded attachments"):
        abnn.attach(Net("flat"), torch.zeros(1, 4), task="regression", preset="paper")
    with pytest.raises(InputError, match="variance: got 2"):
        Regression(variance=2)  # type: ignore[arg-type]


def test_the_most_probable_log_variance_is_that_of_a_general_search() -> None:
    random = generator(8)
    features, squares = torch.randn(60, 3, generator=random), torch.randn(60, generator=random).square()
    prior = torch.tensor([0.5, 0.0, 0.0])

    def loss(w: np.ndarray) -> float:
        logs = features.double().numpy() @ w[:-1] + w[-1]
        return float((logs + squares.numpy() * np.exp(-logs)).sum() / 2 + 2 * ((w[:-1] - prior.numpy()) ** 2).sum())

    reference = minimize(loss, np.zeros(4), tol=1e-10).x
    np.testing.assert_allclose(log_variance(features, squares, 4.0, prior).numpy(), reference, atol=2e-4)


def test_noise_does_not_vanish_outside_of_the_data() -> None:
    """Noise that falls towards the end of the data stays what it is there, and is never below the least that data have."""
    random = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(400, 1, generator=random) - 3
    y = x + (0.02 + 0.3 * torch.exp(-x.square())) * torch.randn(400, 1, generator=random)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (network(x) - y).square().mean().backward()
        optimizer.step()
    model = abnn.attach(network.eval(), x[:1], task="regression")
    abnn.fit(model, DataLoader(TensorDataset(x, y), 50), epochs=0, progress=False, config=FitConfig(accelerator="cpu"))
    inside = model.predict(x).aleatoric
    for side in (1, -1):
        outside = model.predict(side * torch.tensor([[4.0], [6.0], [10.0], [30.0]])).aleatoric
        assert (outside >= inside.min()).all()
        assert (outside.diff(dim=0) >= -1e-6).all()


def test_calibrating_again_finds_the_same(models: dict[str, abnn.Attached]) -> None:
    """What widths of an earlier calibration say is right must not count."""
    model, held_out = copy.deepcopy(models["column"]), batches("column", 300, 5)
    found = []
    for _ in range(2):
        abnn.calibrate(model, held_out, progress=False, config=abnn.TriageConfig(costs=Costs()))
        found.append((model.triage.notice, model.triage.reject))
    assert found[0] == found[1]
