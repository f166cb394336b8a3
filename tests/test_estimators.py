"""The scikit-learn estimators: its own checks, and what they add."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine, make_classification, make_friedman1
from sklearn.linear_model import RidgeCV
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_score, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import abnn
from abnn import estimators
from abnn.errors import InputError, NotFittedError
from abnn.train.combine import gather, members


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network and a score that learn in few steps, for fits that are not about how good they are."""
    monkeypatch.setattr(estimators, "FEWEST_STEPS", 60)
    for estimator in (abnn.AbnnClassifier, abnn.AbnnRegressor):
        monkeypatch.setattr(estimator, "_decays", estimators.DECAYS[:1])
    monkeypatch.setattr(members, "STEPS", 3)
    monkeypatch.setattr(gather, "OUTLIERS", 100)


def split(X: np.ndarray, y: np.ndarray, seed: int) -> list[np.ndarray]:
    return train_test_split(X, y, test_size=0.25, random_state=seed)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("short")
@parametrize_with_checks([abnn.AbnnClassifier(hidden=(16,), epochs=10), abnn.AbnnRegressor(hidden=(16,), epochs=10)])
def test_the_checks_of_scikit_learn_pass(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_classifier_has_verdicts_and_probabilities() -> None:
    X, y = load_wine(return_X_y=True)
    names = np.array(["first", "second", "third"])[y]
    classifier = abnn.AbnnClassifier(hidden=(24,)).fit(X[::2], names[::2])
    assert classifier.score(X[1::2], names[1::2]) > 0.9
    with pytest.raises(
        NotFittedError, match="verdict: .* 19 held-out rows, which are 95 in all.*held_out"
    ):  # 89 rows: too few to hold any out
        classifier.verdict(X)
    whole = abnn.AbnnClassifier(hidden=(24,)).fit(X, names)
    far = X + 30 * X.std(0)
    assert (whole.verdict(far) == "reject").all() and (whole.verdict(X) == "accept").mean() > 0.85
    assert whole.uncertainty(far).min() > np.median(whole.uncertainty(X))


def test_a_regressor_has_widths_and_intervals() -> None:
    X, y = load_diabetes(return_X_y=True)
    regressor = abnn.AbnnRegressor(hidden=(24,), epochs=10).fit(X[::2], y[::2])
    mean, std = regressor.predict(X[1::2], return_std=True)
    assert mean.shape == std.shape == (221,) and (std > 0).all()
    assert regressor.score(X[1::2], y[1::2]) > 0.3
    low, high = regressor.predict_interval(X[1::2], 0.8)
    # 44 rows were held out: the coverage that they give has a standard deviation of about 0.06
    assert ((low <= y[1::2]) & (y[1::2] <= high)).mean() == pytest.approx(0.8, abs=0.18)
    _, far = regressor.predict(X + 1, return_std=True)
    assert np.median(far) > 2 * np.median(std)


def test_a_regressor_is_as_good_as_ridge_regression_where_rows_are_few() -> None:
    """Although it holds a fifth of its rows out, and ridge regression has them all."""
    worse = []
    for seed in range(4):
        X, test, y, truth = split(*load_diabetes(return_X_y=True), seed)
        ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-1, 5, 13))).fit(X, y)
        worse.append(ridge.score(test, truth) - abnn.AbnnRegressor(random_state=seed).fit(X, y).score(test, truth))
    assert np.mean(worse) < 0.02  # 0.15 for layers alone with one small decay


def test_a_regressor_learns_more_than_lines_and_nothing_from_noise() -> None:
    X, test, y, truth = split(*make_friedman1(300, random_state=0), 0)
    ridge = RidgeCV().fit(X, y).score(test, truth)
    assert abnn.AbnnRegressor(hidden=(24,)).fit(X, y).score(test, truth) > ridge + 0.05
    noise = np.random.default_rng(0).normal(size=(300, 11))
    X, test, y, truth = split(noise[:, :10], noise[:, 10], 0)
    assert abnn.AbnnRegressor(hidden=(24,)).fit(X, y).score(test, truth) > -0.1


@pytest.mark.usefixtures("short")
def test_a_regressor_without_use_for_layers_is_ridge_regression(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abnn.AbnnRegressor, "_decays", (math.inf,))
    X, y = load_diabetes(return_X_y=True)
    several = np.stack([y, X[:, 2] - X[:, 3]], axis=1)
    regressor = abnn.AbnnRegressor(held_out=0).fit(X, several)
    ridge = RidgeCV(estimators.PENALTIES, alpha_per_target=True).fit(StandardScaler().fit_transform(X), several)
    expected = ridge.predict(StandardScaler().fit_transform(X))
    np.testing.assert_allclose(regressor.predict(X), expected, rtol=1e-3, atol=1e-3 * several.std(0).min())
    monkeypatch.undo()
    flat = abnn.AbnnRegressor(hidden=()).fit(X, y)  # which is a line anyway
    assert flat.score(X, y) > 0.4


def test_a_classifier_does_not_learn_labels_by_heart(monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_classification(400, 20, n_informative=5, flip_y=0.2, class_sep=0.8, random_state=0)
    X, test, y, truth = split(*data, 0)

    def loss() -> float:
        return log_loss(truth, abnn.AbnnClassifier().fit(X, y).predict_proba(test))

    chosen = loss()
    monkeypatch.setattr(abnn.AbnnClassifier, "_decays", estimators.DECAYS[:1])
    assert chosen < loss()


@pytest.mark.usefixtures("short")
def test_several_numbers_pipelines_and_a_network_of_ones_own() -> None:
    X, y = load_diabetes(return_X_y=True)
    both = abnn.AbnnRegressor(hidden=(8,), epochs=1).fit(X, np.stack([y, -y], axis=1))
    assert both.predict(X[:5]).shape == (5, 2) and both.predict_interval(X[:5])[0].shape == (5, 2)
    pipeline = make_pipeline(StandardScaler(), abnn.AbnnRegressor(hidden=(8,), epochs=1))
    assert len(cross_val_score(pipeline, X, y, cv=2)) == 2
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(10, 6), nn.ReLU(), nn.Linear(6, 1))
    own = abnn.AbnnRegressor(module=network, epochs=0).fit(X, y)
    with torch.no_grad():
        expected = network(torch.from_numpy(X.astype(np.float32)))[:, 0].numpy()
    np.testing.assert_allclose(own.predict(X), expected, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_learnt_is_named() -> None:
    with pytest.raises(InputError, match="y: got one class"):
        abnn.AbnnClassifier().fit(np.zeros((5, 2)), np.zeros(5))
    with pytest.raises(ValueError, match="NaN"):
        abnn.AbnnRegressor().fit(np.ones((5, 2)), np.array([1.0, np.nan, 1, 1, 1]))
    with pytest.raises(InputError, match="X: got 1 sample"):
        abnn.AbnnRegressor().fit(np.ones((1, 2)), np.ones(1))
    for share in (-0.1, 1, 50, None):
        with pytest.raises(InputError, match="held_out: got .*less than 1"):
            abnn.AbnnRegressor(held_out=share).fit(np.ones((5, 2)), np.ones(5))
    for estimator, outputs in ((abnn.AbnnClassifier, 3), (abnn.AbnnClassifier, 1), (abnn.AbnnRegressor, 2)):
        with pytest.raises(InputError, match=f"module: got a network with {outputs} outputs for one row; accepted: "):
            estimator(module=nn.Linear(2, outputs)).fit(np.ones((6, 2)), np.arange(6) % 2)
    for module, problem in ((nn.Linear(5, 2), "cannot be multiplied"), (nn.Linear(2, 2).double(), "dtype")):
        with pytest.raises(InputError, match=rf"module: got a network that fails on a row of X, .*\(1, 2\).*{problem}"):
            abnn.AbnnClassifier(module=module).fit(np.ones((6, 2)), np.arange(6) % 2)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"module": "resnet18"}, "module: got str; accepted: a network"),
        ({"hidden": 50}, r"hidden: got 50; accepted: the sizes of layers, such as \(50, 50\)"),
        ({"hidden": np.array([50, 50])}, r"hidden: got array\(\[50, 50\]\); accepted: .* Pass a tuple or list"),
        ({"hidden": iter((50, 50))}, "hidden: got <tuple_iterator"),
        ({"hidden": (20, 0)}, "hidden: got 0; accepted: a whole number of at least 1"),
        ({"epochs": -1}, "epochs: got -1; accepted: a whole number of at least 0"),
        ({"epochs": 2.5}, "epochs: got 2.5"),
        ({"epochs": "5"}, "epochs: got '5'"),
        ({"fit_epochs": -1}, "^fit_epochs: got -1; accepted: a whole number of at least 0, or None"),
    ],
)
def test_wrong_settings_are_named(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        abnn.AbnnRegressor(**setting).fit(np.ones((6, 2)), np.arange(6.0))


def test_labels_of_several_types_are_named() -> None:
    with pytest.raises(InputError, match="y: got labels of several types.*without a label"):
        abnn.AbnnClassifier().fit(np.ones((4, 2)), np.array(["yes", None, "no", "yes"], dtype=object))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.usefixtures("short")
def test_units_of_columns_and_targets_do_not_matter() -> None:
    """Seconds since 1970 and the like: float32 has steps of 128 there, or ends before."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 100, size=(300, 2))
    classes = np.where(X[:, 1] > 50, "late", "early")

    def outputs(estimator: Any, rows: np.ndarray) -> np.ndarray:
        """Of the network without attachments, which no threshold of the score decides about."""
        with torch.no_grad():
            return estimator.model_.backbone(torch.from_numpy(rows)).numpy()

    read = abnn.AbnnClassifier(hidden=(16,), epochs=1).fit(X, classes)
    number = abnn.AbnnRegressor(hidden=(16,), epochs=1).fit(X, X[:, 1])
    for unit, start in ((1.0, 1.7e9), (1e38, 0.0), (1e-50, 0.0)):
        moved = np.stack([X[:, 0], unit * X[:, 1] + start], axis=1)
        again = abnn.AbnnClassifier(hidden=(16,), epochs=1).fit(moved, classes)
        np.testing.assert_allclose(outputs(again, moved), outputs(read, X), rtol=1e-3, atol=1e-3)
        assert (again.verdict(moved) == read.verdict(X)).mean() > 0.97
        means = abnn.AbnnRegressor(hidden=(16,), epochs=1).fit(moved, moved[:, 1]).predict(moved)
        np.testing.assert_allclose((means - start) / unit, number.predict(X), atol=0.01)
    network = nn.Linear(2, 1)  # takes float32, so what does not fit is refused
    with pytest.raises(ValueError, match="too large for dtype..float32"):
        abnn.AbnnRegressor(module=network).fit(X * 1e38, X[:, 1])


@pytest.mark.usefixtures("short")
def test_without_held_out_rows_there_are_no_verdicts() -> None:
    X, y = load_wine(return_X_y=True)
    with pytest.raises(NotFittedError, match="verdict: .* 19 held-out rows. Fit on more rows"):
        abnn.AbnnClassifier(hidden=(8,), epochs=1, held_out=0).fit(X, y).verdict(X)


@pytest.mark.usefixtures("short")
def test_columns_in_small_units_are_read_and_constant_ones_are_not() -> None:
    X, y = load_wine(return_X_y=True)
    small = abnn.AbnnClassifier(hidden=(16,), epochs=10).fit(X * 1e-9, y)
    assert small.score(X * 1e-9, y) > 0.9
    constant = estimators.Standard(torch.tensor([[0.0, 0.1, 1e-9, 3e7]]).expand(50, 4))
    assert (constant.spread == 1).all()
    tiny = estimators.Standard(1e-15 * torch.tensor([[1.0], [3.0]]))
    assert tiny(1e-15 * torch.tensor([[1.0], [3.0]])).flatten().tolist() == pytest.approx([-1, 1])


@pytest.mark.usefixtures("short")
def test_a_network_with_batch_normalisation_learns_from_any_number_of_rows() -> None:
    X, y = load_wine(return_X_y=True)
    network = nn.Sequential(nn.Linear(13, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    rows = 161  # of which 32 are held out: 129 are two batches and one row
    fitted = abnn.AbnnClassifier(module=network, epochs=1).fit(X[:rows], y[:rows])
    assert np.isfinite(fitted.predict_proba(X)).all()


@pytest.mark.usefixtures("short")
def test_random_states_of_scikit_learn_are_taken() -> None:
    X, y = load_wine(return_X_y=True)
    first, second, other = (
        abnn.AbnnClassifier(hidden=(8,), epochs=1, random_state=state).fit(X, y).predict_proba(X)
        for state in (np.random.RandomState(3), np.random.RandomState(3), None)
    )
    assert np.array_equal(first, second) and not np.array_equal(first, other)


@pytest.mark.usefixtures("short")
def test_random_states_of_devices_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the CPU's is given back, so only that may be set."""
    seeded: list[int] = []
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    X = np.random.default_rng(0).normal(size=(60, 2))
    abnn.AbnnRegressor(epochs=1).fit(X, X[:, 0])
    assert not seeded or torch.cuda.is_available()  # a fit sets all of them, and gives all of them back
